# SPDX-License-Identifier: Apache-2.0
"""What a step without events and what a tree costs: as much as before, however many others run."""

import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import sequence_hooks
from mytests.harness.surgical import SYNC_HOOKS, Sampling, SurgicalEngine, finished, plan
from mytests.harness.tiers import full

OURS = str(Path(sequence_hooks.__file__).parent)


def calls_of_ours(engine: SurgicalEngine) -> int:
    """How many functions of the package, and of C by the package, are called in a step in which all requests decode."""
    number = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call") and frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(count)
    try:
        engine.step({})
    finally:
        sys.setprofile(None)
    return number


def lines_of_ours(num_trees: int, **fields: Any) -> int:
    """How many lines of the package run, from the first to the last step, if so many trees come at once."""
    engine = SurgicalEngine(num_blocks=40 * num_trees, max_num_batched_tokens=2000, **fields)
    texts = {f"t{number}": "ab!cd!ef.gh" for number in range(num_trees)}
    for name in texts:
        engine.add(name, prompt="a tree")
    children = {f"{name}_child_{index}": text for name in texts for index, text in enumerate(("ABCD", "EF"))}
    number = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal number
        number += event == "line"
        return count

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        return count if frame.f_code.co_filename.startswith(OURS) else None

    traced = sys.gettrace()
    sys.settrace(enter)
    try:
        engine.run_until(
            lambda: all(name in engine.outputs and engine.outputs[name].finished for name in texts),
            plan(**texts, **children),
            max_steps=1000,
        )
    finally:
        sys.settrace(traced)
    assert all(len(finished(engine, name).children) == 2 for name in texts)
    engine.assert_empty()
    return number


def decoding(num_requests: int, is_async: bool) -> SurgicalEngine:
    """An engine with hooks and so many requests, none of which has a tree."""
    engine = SurgicalEngine(SYNC_HOOKS, is_async=is_async, num_blocks=200, is_compared=False)
    for number in range(num_requests):
        engine.add(f"r{number}", prompt=f"prompt {number}")
    for _ in range(3):
        engine.step({})
    return engine


@pytest.mark.parametrize("is_async", [False, True])
def test_a_request_without_a_tree_costs_three_calls(is_async: bool) -> None:
    """Upstream calls two overridden methods for each, one of which looks for its tree; a step costs few besides."""
    one, twelve = decoding(1, is_async), decoding(12, is_async)
    num_calls = calls_of_ours(one)
    assert (num_calls <= 75, calls_of_ours(twelve) - num_calls) == (True, 3 * 11)
    for engine in (one, twelve):
        engine.abort([f"r{number}" for number in range(12)])
        engine.assert_empty()


@pytest.mark.parametrize("is_async", [False, True])
def test_after_a_tree_it_costs_as_much_as_before(is_async: bool) -> None:
    """While there is one, all requests of a step are asked about."""
    engine = decoding(12, is_async)
    before = calls_of_ours(engine)
    engine.add("t", prompt="a tree")
    texts = {"t": "ab!cd.ef", "t_child_0": "AB"}
    planned = plan(**texts)
    engine.run_until(
        lambda: "t" in engine.outputs and engine.outputs["t"].finished,
        lambda sampling: planned(sampling) if sampling.request_id in texts else ord("x"),
    )
    assert finished(engine, "t").children
    engine.step({})
    assert calls_of_ours(engine) == before
    engine.abort([f"r{number}" for number in range(12)])
    engine.assert_empty()


@pytest.mark.parametrize(
    ("merge", "max_num_seqs", "is_async"),
    [
        ("concatenate", 12, True),
        full("concatenate", 240, False),
        full("kv_inject", 12, False),
        ("kv_inject", 240, True),
        full("concatenate", 12, False),
        full("concatenate", 240, True),
        full("kv_inject", 12, True),
        full("kv_inject", 240, False),
    ],
)
def test_a_further_tree_costs_what_the_first_ones_did(merge: Any, max_num_seqs: int, is_async: bool) -> None:
    """A loop over all that run or wait, at each event of one of them, would add to each of the last 40."""
    fields = {"special_kwargs": replace(SYNC_HOOKS, child_merge_strategy=merge), "is_async": is_async}
    five, ten, forty, eighty = (lines_of_ours(n, max_num_seqs=max_num_seqs, **fields) for n in (5, 10, 40, 80))
    assert (eighty - forty) / 40 <= 1.05 * (ten - five) / 5


@pytest.mark.parametrize(("is_async", "in_flight"), [(False, 0), (True, 2)])
def test_a_synchronous_engine_counts_no_tokens_in_flight(is_async: bool, in_flight: int) -> None:
    """Upstream's scheduler for asynchronous engines looks at each request twice more in a step."""
    engine, seen = decoding(1, is_async), []

    def look(sampling: Sampling) -> int:
        seen.append(engine.scheduler.requests[sampling.request_id].num_output_placeholders)
        return ord("x")

    engine.step(look)
    assert seen == [in_flight]
    engine.abort("r0")
    engine.assert_empty()
