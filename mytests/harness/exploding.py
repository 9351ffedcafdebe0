# SPDX-License-Identifier: Apache-2.0
"""Loads of which a sequence spawns as much as it can, on a surgical engine."""

import dataclasses
from collections.abc import Callable
from typing import Any

from mytests.harness.stepped import Sampling, Tokens
from mytests.harness.surgical import EOS, PROMISE, SYNC_HOOKS

BOMB = dataclasses.replace(SYNC_HOOKS, max_child_depth=3, max_children=64, children_per_promise=4)
"""Hooks with which a sequence that samples nothing but promises has hundreds of descendants."""

NUM_ORDINARY = 8
"""How many tokens an ordinary request samples."""


def exploding(*bombs: str, length: int = 10**9) -> Callable[[Sampling], int]:
    """Sequences of ``bombs`` sample promises, up to ``length`` tokens; all others a few ordinary tokens."""

    def choose(sampling: Sampling) -> int:
        is_bomb = sampling.request_id.split("_")[0] in bombs
        if sampling.num_sampled >= (length if is_bomb else NUM_ORDINARY):
            return EOS
        return PROMISE if is_bomb else ord("x")

    return choose


def steps_of(engine: Any, request_id: str, tokens: Tokens) -> int:
    """How many steps pass until a request, which is added now, has finished."""
    engine.add(request_id)
    for step in range(500):
        if request_id in engine.outputs and engine.outputs[request_id].finished:
            return step
        engine.step(tokens)
    raise AssertionError(f"it is not served: {engine.statuses()}")


def abort_all(engine: Any, *request_ids: str) -> None:
    engine.abort(list(request_ids))
    engine.run({})
