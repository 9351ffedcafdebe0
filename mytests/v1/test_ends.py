# SPDX-License-Identifier: Apache-2.0
"""A sequence of a tree ends as upstream's requests do, and callers are told so, however outputs are handed out."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine, finished, plan
from vllm.sampling_params import RepetitionDetectionParams

HOOKS = dataclasses.replace(SYNC_HOOKS, child_merge_strategy="none")
ENDS: dict[str, dict[str, Any]] = {
    "its end": {},
    "its end, in the text": {"include_stop_str_in_output": True},
    "a stop token": {"stop_token_ids": [ord("e")]},
    "a stop token, in the text": {"stop_token_ids": [ord("e")], "include_stop_str_in_output": True},
    "a stop string": {"stop": ["de"]},
    "a stop string, in the text": {"stop": ["de"], "include_stop_str_in_output": True},
    "a stop string in a stop token": {"stop": ["e"], "stop_token_ids": [ord("e")]},
    "a stop string in a stop token, in the text": {
        "stop": ["e"],
        "stop_token_ids": [ord("e")],
        "include_stop_str_in_output": True,
    },
    "its length": {"max_tokens": 7},
    "a repetition": {"repetition_detection": RepetitionDetectionParams(max_pattern_size=1, min_count=3)},
}


def told(output: Any) -> tuple[Any, ...]:
    """How an output has ended; the first tokens are its own."""
    return output.text.replace("xx", ""), tuple(output.token_ids[4:]), output.finish_reason


@pytest.mark.parametrize("params", ENDS.values(), ids=ENDS)
def test_a_sequence_with_a_tree_ends_as_one_without(params: dict[str, Any]) -> None:
    """A root, a child, and a request that samples other tokens instead of hooks."""
    engine = SurgicalEngine(HOOKS)
    engine.add("r", **params)
    engine.add("s", **params)
    engine.run(plan(r="ab!.cdefffg", r_child_0="abxxcdefffg", s="abxxcdefffg"))
    root, without = finished(engine), finished(engine, "s")
    assert told(root) == told(root.children[0]) == told(without)
    assert root.stop_reason == without.stop_reason


def test_repetitions_are_looked_for_since_the_last_join() -> None:
    """What was sampled before it does not stand beside what comes after."""
    engine = SurgicalEngine(HOOKS)
    engine.add(**ENDS["a repetition"])
    engine.run(plan(r="aa!.aaaa", r_child_0="A"))
    assert finished(engine).text == "aaaaa"


SHORT = dataclasses.replace(SYNC_HOOKS, child_sampling_params={"max_tokens": 3})
NAMES = ("q", "r", "s")


def told_in_chunks_of(chunk_size: int) -> list[Any]:
    """What the callers of three trees are told, whose children all end in one step, and at their lengths."""
    engine = SurgicalEngine(SHORT, chunk_size=chunk_size)
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
    assert told_in_chunks_of(chunk_size) == told_in_chunks_of(128)
