# SPDX-License-Identifier: Apache-2.0
"""Random histories, walks and bodies: what draws them, what runs them, and what must come out."""
