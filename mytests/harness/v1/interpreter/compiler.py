# SPDX-License-Identifier: Apache-2.0
"""What Triton asks a backend's compiler for, and never does while it interprets."""

from triton.backends.compiler import BaseBackend


class InterpretingBackend(BaseBackend):
    """It compiles nothing."""


InterpretingBackend.__abstractmethods__ = frozenset()
