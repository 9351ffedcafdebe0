# SPDX-License-Identifier: Apache-2.0
"""Upstream's asynchronous engine hands the outputs of a large step to the front end in several calls."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine, finished, plan

HOOKS = dataclasses.replace(SYNC_HOOKS, child_sampling_params={"max_tokens": 3})
NAMES = ("q", "r", "s")


def told(chunk_size: int) -> list[Any]:
    """What the callers of three trees are told, whose children all end in one step, and at their lengths."""
    engine = SurgicalEngine(HOOKS, chunk_size=chunk_size)
    scripts: dict[str, str] = {}
    for name in NAMES:
        engine.add(name, extra_args={"stream_children": True})
        scripts |= {name: "a!!b.z", f"{name}_child_0": "ABCD", f"{name}_child_1": "EFGH"}
    engine.run(plan(**scripts))
    engine.assert_empty()
    completions = [finished(engine, name) for name in NAMES]
    trees = [(each.text, each.segments, each.joins, each.logprobs) for each in completions]
    deltas = sorted((delta.request_id, delta.text, delta.finish_reason or "") for delta in engine.deltas)
    return [*trees, *deltas]


@pytest.mark.parametrize("chunk_size", [1, 2, 3])
def test_events_wait_for_the_outputs_before_them(chunk_size: int) -> None:
    """Wherever the outputs are cut, callers are told the same as in one call."""
    assert told(chunk_size) == told(128)
