# SPDX-License-Identifier: Apache-2.0
"""Sequence hooks for an unmodified, current vLLM (V1). Only this package of `sequence_hooks` imports vLLM.

``core`` runs in the engine's process and carries out what hook tokens do, ``frontend`` runs where requests come in and
tells their callers what happened, and ``worker`` runs beside the model; ``plugin`` is what upstream loads, and
``engines`` what a user may import in place of upstream's. It must not decide what a hook means, which is for
`sequence_hooks.tree` to say, and no other package imports it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sequence_hooks.v1.engines import LLM as LLM
    from sequence_hooks.v1.engines import AsyncLLM as AsyncLLM
    from sequence_hooks.v1.engines import LLMEngine as LLMEngine
    from sequence_hooks.v1.settings import engine_args as engine_args

__all__ = ["LLM", "AsyncLLM", "LLMEngine", "engine_args"]

_OWNERS = {"LLM": "engines", "AsyncLLM": "engines", "LLMEngine": "engines", "engine_args": "settings"}


def __getattr__(name: str) -> Any:
    # See `sequence_hooks`: the entry point is in this package.
    if name not in _OWNERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sequence_hooks.v1.stock import check_stock

    check_stock()
    return getattr(import_module(f"{__name__}.{_OWNERS[name]}"), name)
