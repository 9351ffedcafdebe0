# SPDX-License-Identifier: Apache-2.0
"""A joined child keeps only its output; `test_forgotten.py` measures it."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.injecting import INJECT, SYNC_INJECT
from mytests.harness.outcomes import assert_released
from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SpecialKwargs, SurgicalEngine, begun, finished, plan

SCRIPT = {"r": "!.z", "r_child_0": "A!.B", "r_child_0_child_0": "CDEFGH"}


def started(hooks: SpecialKwargs) -> tuple[SurgicalEngine, list[Any]]:
    """An engine with a child that has a child, and the branches of both."""
    engine = SurgicalEngine(dataclasses.replace(hooks, max_child_depth=2))
    engine.add()
    engine.run_until(lambda: "r_child_0_child_0" in engine.statuses(), plan(**SCRIPT))
    (root,) = engine.scheduler.trees.roots
    (child,) = root.children
    return engine, [child, *child.children]


@pytest.mark.parametrize(
    "hooks", [HOOKS, SYNC_HOOKS, INJECT, SYNC_INJECT], ids=["promise", "sync", "inject", "sync-inject"]
)
def test_what_the_caller_learns_stays(hooks: SpecialKwargs) -> None:
    """The output has children and grandchildren, whichever way they were joined; their contexts are gone."""
    engine, branches = started(hooks)
    engine.run(plan(**SCRIPT))
    (child,) = finished(engine).children
    assert (child.text, child.children[0].text) == ("ACDEFGHB", "CDEFGH")
    for branch in branches:
        assert_released(branch)
    engine.assert_empty()


def test_an_aborted_child_releases_all_below_it() -> None:
    """Its own children's contexts are dropped too, although they were never joined."""
    engine, branches = started(SYNC_HOOKS)
    engine.abort("r_child_0")
    engine.run_until(lambda: engine.num_sampled("r") == 3, plan(**SCRIPT))
    for branch in branches:
        assert_released(branch)
    engine.run(plan(**SCRIPT))
    assert finished(engine).children[0].failed


def test_a_child_whose_kv_is_kept_keeps_its_context_until_it_is_joined() -> None:
    """The context tells where each token of the result is."""
    engine = SurgicalEngine(SYNC_INJECT)
    with begun(engine, plan(r="!!.z", r_child_0="AB", r_child_1="C" * 9), lambda: bool(engine.scheduler._kept)):
        (root,) = engine.scheduler.trees.roots
        assert root.children[0].sequence.prompt_token_ids[0] == ord("p")
    assert_released(root.children[0])
