# SPDX-License-Identifier: Apache-2.0
"""vLLM with sequence hooks: a sequence splits and joins while it decodes.

The public names are upstream's, resolved in this package and never in ``vllm._upstream``:
the latter would import every module a second time, and ``isinstance`` would fail across the two.
"""

from importlib import import_module
from typing import Any

from vllm._overlay import extend_package

extend_package(__name__, __path__)

from vllm._upstream import MODULE_ATTRS  # noqa: E402
from vllm.version import __version__, __version_tuple__  # noqa: E402

__all__ = ["__version__", "__version_tuple__", *MODULE_ATTRS]


def __getattr__(name: str) -> Any:
    if name not in MODULE_ATTRS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = MODULE_ATTRS[name].split(":")
    return getattr(import_module(module, __name__), attribute)
