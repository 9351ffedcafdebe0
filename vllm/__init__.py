# SPDX-License-Identifier: Apache-2.0
"""vLLM with sequence hooks: a sequence splits and joins while it decodes.

The public names are upstream's, resolved in this package and never in ``vllm._upstream``:
the latter would import every module a second time, and ``isinstance`` would fail across the two.
"""

from importlib import import_module
from typing import Any

from vllm._overlay import extend_package
from vllm._version import __version__ as __version__
from vllm._version import __version_tuple__ as __version_tuple__

extend_package(__name__, __path__)

# Upstream's root package prepares the process, and has to be imported before any of its modules.
_PUBLIC = import_module("vllm._upstream").MODULE_ATTRS
__all__ = ["__version__", "__version_tuple__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PUBLIC[name].split(":")
    return getattr(import_module(module, __name__), attribute)
