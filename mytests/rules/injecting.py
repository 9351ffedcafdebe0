# SPDX-License-Identifier: Apache-2.0
"""Surgical engines that inject KV, and what they have injected, on both engines."""

import dataclasses
from typing import TYPE_CHECKING, Any

from mytests.rules.engine import HOOKS, SYNC_HOOKS, SpecialKwargs, SurgicalEngine, finished
from mytests.which import IS_V1

if TYPE_CHECKING:
    from mytests.pretended_kv import PretendedKV

INJECT = dataclasses.replace(HOOKS, child_merge_strategy="kv_inject")
SYNC_INJECT = dataclasses.replace(SYNC_HOOKS, child_merge_strategy="kv_inject")
OVERLAP = dataclasses.replace(SYNC_INJECT, position_rule="overlap", children_per_promise=2)


def engine_with_kv(hooks: SpecialKwargs = SYNC_INJECT, **sizes: Any) -> SurgicalEngine:
    """An engine whose pretended KV cache checks that every token reads its own context, or what was injected for it."""
    fields: dict[str, Any] = {"block_size": 4} | sizes
    if IS_V1:
        return SurgicalEngine(hooks, **fields)
    from mytests.pretended_kv import PretendedKV

    return SurgicalEngine(hooks, **{"model": PretendedKV(4)} | fields)


def moves(engine: SurgicalEngine) -> list[tuple[int, int]]:
    """The positions of all injected tokens, before and after."""
    if IS_V1:
        copies = engine.worker.injected  # type: ignore[attr-defined]
    else:
        pretended: PretendedKV = engine.model  # type: ignore[assignment]
        copies = pretended.copies
    return [(copy.source_position, copy.position) for copy in copies]


def prefilled(engine: SurgicalEngine, request_id: str = "r") -> list[int]:
    """The number of tokens prefilled at each join."""
    return [join.num_prefill for join in finished(engine, request_id).joins]


def cached(engine: SurgicalEngine, request: Any) -> int:
    """The number of tokens of a request, which has just been added, that the prefix cache has."""
    if IS_V1:
        found: int = engine.scheduler._get_local_prefix_cache_hit(request)[1]  # type: ignore[attr-defined]
        return found
    return engine.scheduler.block_manager.get_num_cached_tokens(request.first_seq)
