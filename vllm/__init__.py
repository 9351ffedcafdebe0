# SPDX-License-Identifier: Apache-2.0
"""vLLM with sequence hooks: a sequence forks and joins while it decodes.

The public names are upstream's, resolved in this package and never in ``vllm._upstream``:
the latter would import every module a second time, and ``isinstance`` would fail across the two.
Upstream's root package, which imports torch, is imported with the first of vLLM's modules and not with this
package, since commands of ``vllm.hooks`` that need no engine import this package too.
"""

from importlib import import_module
from typing import Any

from vllm._overlay import extend_package, import_upstream_first
from vllm._version import __version__ as __version__
from vllm._version import __version_tuple__ as __version_tuple__

extend_package(__name__, __path__)
import_upstream_first()


def __getattr__(name: str) -> Any:
    public = import_module("vllm._upstream").MODULE_ATTRS
    if name == "__all__":
        return ["__version__", "__version_tuple__", *public]
    # Upstream's root package imports some of its modules, and so makes them attributes of this one.
    if name in globals():
        return globals()[name]
    if name not in public:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = public[name].split(":")
    return getattr(import_module(module, __name__), attribute)
