# SPDX-License-Identifier: Apache-2.0
"""Metrics of hooks: which of the scheduler's counts Prometheus gets, and the line in the log."""

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from mytests.harness.handlers import FORK, own
from mytests.harness.installed import IS_V1
from mytests.harness.measured import measured, told, unregister
from mytests.harness.surgical import SYNC_HOOKS, SpecialKwargs, begun, completed, plan, tree

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")
OF_JOINS = ("children_spawned", "children_failed", "merged_tokens", "resume_prefill_tokens", "resume_saved_tokens")


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    """No engine before has left any."""
    unregister()
    yield
    unregister()


@pytest.mark.parametrize(
    ("strategy", "texts", "aborted", "counts"),
    [
        ("concatenate", ("!!.z", "ABCDE", "XYZ"), None, [2, 0, 9, 10, 8]),
        ("kv_inject", ("!!.z", "ABCDE", "XYZ"), None, [2, 0, 9, 3, 15]),
        ("concatenate", ("!!.z", "ABCDE", "XYZ"), "r_child_1", [2, 1, 6, 7, 8]),
        ("concatenate", ("!a", "ABCDE"), None, [1, 0, 5, 0, 0]),
    ],
    ids=["merged", "injected", "failed", "at its end"],
)
def test_joins_are_counted(strategy: Any, texts: tuple[str, ...], aborted: str | None, counts: list[int]) -> None:
    """Once, however often the logger is called; what a parent keeps is saved, and one that ends prefills nothing."""
    engine, log = measured(dataclasses.replace(SYNC_HOOKS, child_merge_strategy=strategy))
    with begun(engine, plan(**tree(*texts)), lambda: engine.statuses().get("r") == "BLOCKED"):
        engine.abort(aborted or [])
    log()
    log()
    assert [told(f"{name}_total") for name in OF_JOINS] == counts
    assert told("request_blocked_time_seconds_count") == 1
    assert IS_V1 or not engine.driver.trees.stats.blocked_times
    assert told("num_requests_blocked") == told("blocked_cache_usage_perc") == 0
    assert told("blocked_kv_evictions_total", means="discard") == 0


def test_limits_are_counted() -> None:
    """Each promise that is refused, and each tree once, by the limit."""
    engine, log = measured(dataclasses.replace(SYNC_HOOKS, max_children=1, max_tree_tokens=30))
    for name in "rs":
        engine.add(name)
    engine.run(plan(**tree("!!!" + "a" * 30, "c" * 30), **tree("!!z", "x", name="s")))
    log()
    limits = ("max_children", "max_tree_tokens", "max_tree_sequences")
    assert told("promises_refused_total", limit="max_children") == 3
    assert [told("trees_limited_total", limit=limit) for limit in limits] == [2, 1, 0]


def test_other_refusals_are_counted_beside_them() -> None:
    """What a handler finds malformed, and a hook that fails."""
    engine, log = measured(SpecialKwargs(handlers={FORK: own("Malformed")}))
    completed(engine, r="a*b*c*d")
    log()
    assert [told("promises_refused_total", limit=limit) for limit in ("malformed", "failed")] == [1, 2]
    assert [told("trees_limited_total", limit=limit) for limit in ("malformed", "failed")] == [1, 1]


def test_who_is_blocked_and_what_they_hold(caplog: pytest.LogCaptureFixture) -> None:
    """A block that two BLOCKED sequences share counts once, out of sixteen; a line tells it while there are any."""
    caplog.set_level(logging.INFO, logger="vllm")
    engine, log = measured(MANUAL, block_size=4, num_blocks=16)
    with begun(engine, plan(r="!.y", r_child_0=".z"), lambda: len(engine.scheduler.blocked) == 2, prompt="p" * 8):
        log()
        blocks = {*engine.blocks_of("r"), *engine.blocks_of("r_child_0")}
        assert (told("num_requests_blocked"), told("blocked_cache_usage_perc")) == (2, len(blocks) / 16)
        engine.abort("r")
    log()
    assert told("num_requests_blocked") == told("blocked_cache_usage_perc") == 0
    line = f"Blocked: 2 reqs, KV cache usage of the blocked: {len(blocks) / 16:.1%}"
    assert [
        record.message.removeprefix("Engine 000: ") for record in caplog.records if "Blocked" in record.message
    ] == [line]


def test_what_was_given_up() -> None:
    """What BLOCKED sequences give up counts, on V0 for each block; what running ones give up is upstream's metric."""
    engine, log = measured(MANUAL, num_blocks=8, max_model_len=32)
    engine.add("r", prompt="p" * 8)
    engine.run_until(lambda: bool(engine.awaiting()), plan(r="."))
    engine.add("s", prompt="s" * 8)
    engine.add("t", prompt="t" * 8)
    engine.run_until(engine.is_waiting_for_callers, plan(s="a" * 6, t="b" * 6))
    log()
    assert told("blocked_kv_evictions_total", means="discard") == (1 if IS_V1 else 2)
    engine.abort("r")
    engine.assert_empty()
