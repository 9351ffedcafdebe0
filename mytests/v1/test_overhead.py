# SPDX-License-Identifier: Apache-2.0
"""What a step without events costs: a fixed number of calls, however many requests run."""

import sys
from pathlib import Path
from types import FrameType

import pytest

import sequence_hooks
from mytests.v1.surgical import SYNC_HOOKS, Sampling, SurgicalEngine, finished, plan

OURS = str(Path(sequence_hooks.__file__).parent)


def calls_of_ours(engine: SurgicalEngine) -> int:
    """How many functions of the package are called in a step in which all requests decode."""
    number = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal number
        number += event == "call" and frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(count)
    try:
        engine.step({})
    finally:
        sys.setprofile(None)
    return number


def decoding(num_requests: int, is_async: bool) -> SurgicalEngine:
    """An engine with hooks and so many requests, none of which has a tree."""
    engine = SurgicalEngine(SYNC_HOOKS, is_async=is_async, num_blocks=200)
    for number in range(num_requests):
        engine.add(f"r{number}", prompt=f"prompt {number}")
    for _ in range(3):
        engine.step({})
    return engine


@pytest.mark.parametrize("is_async", [False, True])
def test_a_request_without_a_tree_costs_no_call(is_async: bool) -> None:
    """The calls of a step are the same for 1 request and for 12."""
    one, twelve = decoding(1, is_async), decoding(12, is_async)
    assert calls_of_ours(one) == calls_of_ours(twelve) > 0
    for engine in (one, twelve):
        engine.abort([f"r{number}" for number in range(12)])
        engine.assert_empty()


@pytest.mark.parametrize("is_async", [False, True])
def test_after_a_tree_it_costs_none_again(is_async: bool) -> None:
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
