# SPDX-License-Identifier: Apache-2.0
"""A backend of Triton's with the name that upstream's CPU build asks for. Kernels are interpreted, not compiled."""
