# SPDX-License-Identifier: Apache-2.0
"""What the scheduler counts about hooks."""

import dataclasses

import pytest

from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine, plan
from sequence_hooks.tree.stats import HookStats


def stats_of(strategy: str = "concatenate", abort: str | None = None) -> HookStats:
    """The counts of a request with two children, of five and three tokens; ``abort`` names one to abort."""
    engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, child_merge_strategy=strategy))
    engine.add(prompt="prompt")
    script = plan(r="!!.z", r_child_0="ABCDE", r_child_1="XYZ")
    engine.run_until(lambda: engine.statuses().get("r") == "BLOCKED", script)
    if abort is not None:
        engine.abort(abort)
    engine.run(script)
    engine.assert_empty()
    stats: HookStats = engine.scheduler.trees.stats
    return stats


@pytest.mark.parametrize(("strategy", "num_prefilled"), [("concatenate", 10), ("kv_inject", 3)])
def test_a_join_counts_what_it_merged_and_saved(strategy: str, num_prefilled: int) -> None:
    """Nine tokens were in the context before, and the separator is merged too."""
    stats = stats_of(strategy)
    assert (stats.num_spawned, stats.num_failed, stats.num_merged) == (2, 0, 9)
    assert (stats.num_prefilled, stats.num_prefilled + stats.num_saved) == (num_prefilled, 9 + 9)


def test_a_child_that_fails_is_counted() -> None:
    """It is counted when its parent is joined."""
    assert (stats_of(abort="r_child_1").num_spawned, stats_of(abort="r_child_1").num_failed) == (2, 1)


def test_a_sequence_that_ends_at_its_join_saves_nothing() -> None:
    """It prefills nothing either."""
    engine = SurgicalEngine(SYNC_HOOKS)
    engine.add(prompt="prompt")
    engine.run(plan(r="!a", r_child_0="ABCDE"))
    assert (engine.scheduler.trees.stats.num_prefilled, engine.scheduler.trees.stats.num_saved) == (0, 0)
    assert engine.scheduler.trees.stats.num_merged == 5
