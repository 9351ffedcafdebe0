# SPDX-License-Identifier: Apache-2.0
"""Trees and speculative decoding, alone and together, in steps: `make bench-speculation`."""
