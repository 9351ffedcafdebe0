# SPDX-License-Identifier: Apache-2.0
"""Surgical engines that inject KV, and what they have injected, on both engines."""

import dataclasses
from typing import Any

from mytests.engine.surgical import HOOKS, SYNC_HOOKS, SpecialKwargs, SurgicalEngine, finished

INJECT = dataclasses.replace(HOOKS, child_merge_strategy="kv_inject")
SYNC_INJECT = dataclasses.replace(SYNC_HOOKS, child_merge_strategy="kv_inject")
OVERLAP = dataclasses.replace(SYNC_INJECT, position_rule="overlap", children_per_promise=2)


def engine_with_kv(hooks: SpecialKwargs = SYNC_INJECT, **sizes: Any) -> SurgicalEngine:
    """An engine whose pretended KV cache checks that every token reads its own context, or what was injected for it."""
    return SurgicalEngine.checking_reads(hooks, **{"block_size": 4} | sizes)


def moves(engine: SurgicalEngine) -> list[tuple[int, int]]:
    """The positions of all injected tokens, before and after."""
    return [(copy.source_position, copy.position) for copy in engine.injected()]


def prefilled(engine: SurgicalEngine, request_id: str = "r") -> list[int]:
    """The number of tokens prefilled at each join."""
    return [join.num_prefill for join in finished(engine, request_id).joins]
