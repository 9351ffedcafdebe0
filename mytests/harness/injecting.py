# SPDX-License-Identifier: Apache-2.0
"""Hooks that inject KV, and what engines have injected."""

import dataclasses

from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, finished

INJECT = dataclasses.replace(HOOKS, child_merge_strategy="kv_inject")
SYNC_INJECT = dataclasses.replace(SYNC_HOOKS, child_merge_strategy="kv_inject")
OVERLAP = dataclasses.replace(SYNC_INJECT, position_rule="overlap", children_per_promise=2)


def moves(engine: SurgicalEngine) -> list[tuple[int, int]]:
    """The positions of all injected tokens, before and after."""
    return [(copy.source_position, copy.position) for copy in engine.injected()]


def held(engine: SurgicalEngine, request_id: str = "r") -> list[int]:
    """The positions of all KV that an unfinished sequence has."""
    slots = [engine.kv.blocks[block] for block in engine.blocks_of(request_id)]
    return [block[place].position for block in slots for place in range(engine.block_size) if place in block]


def prefilled(engine: SurgicalEngine, request_id: str = "r") -> list[int]:
    return [join.num_prefill for join in finished(engine, request_id).joins]
