# SPDX-License-Identifier: Apache-2.0
"""`make bench-plugin` on a small scale: what a run has cost, and one complete pass over all sides."""

from pathlib import Path

import pytest

from benchmarks.forkjoin.engine import Run, Step
from benchmarks.forkjoin.models import SMALL
from benchmarks.forkjoin.plans import Plan, equal
from benchmarks.forkjoin.sides import Workshop
from benchmarks.plugin_forkjoin.contestants import CONTESTANTS
from benchmarks.plugin_forkjoin.measure import FORKS, Suite, measure
from benchmarks.plugin_forkjoin.outcomes import Outcome, Outcomes
from benchmarks.plugin_forkjoin.page import write_page

PLAN = equal(64, 2, 8)


def outcome(side: str, number: int, seconds: float) -> Outcome:
    """An outcome of two trees that a client has made."""
    run = Run(seconds, [Step(1.0, 7, 2, 0.5, 0.1)] * 3, 10, ends={"a/lead": 0.5, "a/tail": 1.0, "b/tail": 3.0})
    return Outcome.of("a model", side, PLAN, number, run, 32)


@pytest.mark.parametrize(
    ("hooks", "again", "verdict"), [(1.0, 2.0, "met"), (3.0, 2.0, "**missed**"), (1.9, 2.4, "cannot tell")]
)
def test_a_gain_is_judged_by_the_control(hooks: float, again: float, verdict: str) -> None:
    """The client takes two seconds, and as long in a second process if nothing disturbs it."""
    times = {"hooks": hooks, "client": 2.0, "client, again": again}
    found = [outcome(side.name, number, times.get(side.name, 2.0)) for side in CONTESTANTS for number in range(9)]
    page = write_page(Outcomes(found), [], "a test", 60.0, "a machine")
    (row,) = [line for line in page.splitlines() if line.startswith("| a model: 1: 64, 2 x 8, hooks / client ")]
    assert row.split("|")[4].strip() == verdict


@pytest.mark.parametrize(("last", "verdict"), [(0.0011, "met"), (0.0013, "**missed**")])
def test_a_fork_is_to_take_as_long_after_any_context(last: float, verdict: str) -> None:
    """Outside the model, in the steps of the promise and of the children's first token."""
    found = []
    for plan, seconds in zip(FORKS, (0.001, 0.001, last), strict=True):
        steps = [Step(1.0, 9, 1, 1.0, 0.0), *[Step(1.0 + seconds, 8, 8, 1.0, 0.0)], *[Step(1.0, 8, 8, 1.0, 0.0)] * 40]
        found.append(Outcome.of(SMALL.name, "hooks", plan, 0, Run(1.0, steps, 1, ends={"a": 1.0}), 32))
    page = write_page(Outcomes(found), [], "a test", 60.0, "a machine")
    (row,) = [line for line in page.splitlines() if "outside the model, after 512, 2048, 8192" in line]
    assert row.split("|")[4].strip() == verdict


def test_children_and_join_are_compared_with_batched_steps() -> None:
    """A child of 8 tokens decodes in 8 steps, and the join takes one more."""
    lead, batched, join = Step(5.0, 64, 1, 4.0, 0.1), Step(1.0, 2, 2, 0.5, 0.1), Step(2.0, 15, 1, 1.5, 0.1)
    steps = [lead, *[batched] * 8, join, *[lead] * 3]
    tree = Outcome.of("a model", "hooks", PLAN, 0, Run(1.0, steps, 1, ends={"a": 1.0}), 32).tree
    assert (tree.children_and_join, tree.batched_step) == (10.0, 1.0)
    assert tree.fork == pytest.approx(1.0 - 0.5)


@pytest.mark.model
@pytest.mark.full
def test_every_side_samples_the_script_and_stands_on_the_page(tmp_path: Path) -> None:
    """A worker raises at any other token; steps and tokens are the same in the fork and with the plug-in."""
    plans = (equal(64, 2, 8), Plan(64, (8,) * 4, num_requests=3), Plan(64, (8,) * 2, depth=3))
    kinds = tuple(dict.fromkeys(each.kind for each in CONTESTANTS))
    found = measure(Suite(1, ((SMALL, plans),)), Workshop(tmp_path, kinds))
    outcomes = Outcomes.saved(found, tmp_path / "outcomes.jsonl")
    for plan in plans:
        for plugin, fork in (("hooks", "fork"), ("injection", "fork, injection")):
            (one,), (other,) = (outcomes.of(SMALL.name, side, plan) for side in (plugin, fork))
            assert (one.steps, one.tokens) == (other.steps, other.tokens)
    page = write_page(outcomes, [], "a test", 60.0, "a machine")
    assert all(side.name in page for side in CONTESTANTS)
    num_left_out = sum(not side.does(plan) for side in CONTESTANTS for plan in plans)
    assert len((tmp_path / "outcomes.jsonl").read_text().splitlines()) == len(plans) * len(CONTESTANTS) - num_left_out
