# SPDX-License-Identifier: Apache-2.0
"""What forks share on V1, to the block; `mytests/rules/test_forks.py` says what they compute."""

import pytest

from mytests.engine.surgical import HOOKS, SurgicalEngine, finished, plan
from vllm.v1.core.sched.async_scheduler import AsyncScheduler


@pytest.mark.usefixtures("each_mode")
def test_full_blocks_are_shared_and_the_last_one_is_copied() -> None:
    """Upstream copies it when it admits the child, so that no more than one block is new."""
    engine = SurgicalEngine(HOOKS)
    engine.add(prompt="p" * 9)
    script = plan(r="!b", r_child_0="BCDEF")
    engine.run_until(lambda: "r_child_0" in engine.worker.tables, script)
    parent, child = engine.blocks_of("r"), engine.blocks_of("r_child_0")
    assert parent[:2] == child[:2] and parent[2] != child[2]
    assert engine.worker.copies == [(parent[2], child[2])]
    engine.run(script)
    engine.assert_empty()


@pytest.mark.usefixtures("each_mode")
def test_blocked_parents_take_no_slot() -> None:
    """As many parents as slots wait at once, and their children run."""
    engine = SurgicalEngine(HOOKS, max_num_seqs=2)
    for name in "rs":
        engine.add(name)
    script = plan(r="!a", s="!a", r_child_0="BBBB", s_child_0="CCCC")
    engine.run_until(lambda: sorted(engine.statuses().values()) == ["BLOCKED"] * 2 + ["RUNNING"] * 2, script)
    engine.run(script)
    assert [finished(engine, name).text for name in "rs"] == ["BBBBa", "CCCCa"]
    engine.assert_empty()


def test_the_scheduler_is_upstreams_asynchronous_one() -> None:
    """Otherwise upstream would switch asynchronous scheduling off."""
    assert isinstance(SurgicalEngine().scheduler, AsyncScheduler)
