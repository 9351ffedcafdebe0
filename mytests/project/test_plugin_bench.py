# SPDX-License-Identifier: Apache-2.0
"""`make bench-plugin` on a small scale: what a run has cost, and one complete pass over all sides."""

import argparse
from pathlib import Path

import pytest

from benchmarks.counts import positive
from benchmarks.forkjoin.engine import Run, Step
from benchmarks.forkjoin.models import SMALL
from benchmarks.forkjoin.plans import Plan, Script, Tokens, equal
from benchmarks.forkjoin.sides import Workshop
from benchmarks.plugin_forkjoin.__main__ import plan_of
from benchmarks.plugin_forkjoin.contestants import CONTESTANTS
from benchmarks.plugin_forkjoin.load import LOADS, SIDES, Loaded
from benchmarks.plugin_forkjoin.measure import FORKS, Suite, measure
from benchmarks.plugin_forkjoin.outcomes import Outcome, Outcomes
from benchmarks.plugin_forkjoin.page import write_page

PLAN = equal(64, 2, 8)


def outcome(side: str, number: int, seconds: float) -> Outcome:
    """An outcome of two trees that a client has made."""
    run = Run(seconds, [Step(1.0, 7, 2, 0.5, 0.1)] * 3, 10, ends={"a/lead": 0.5, "a/tail": 1.0, "b/tail": 3.0})
    return Outcome.of("a model", side, PLAN, number, run, 32)


def test_a_clients_tree_ends_with_its_tail() -> None:
    """Blocks count by their tokens, whatever a side's block size."""
    found = outcome("client", 0, 4.0)
    assert (found.typical_end, found.late_end, found.round_trips) == (2.0, 3.0, 3)
    assert (found.steps, found.tokens, found.peak_blocks) == (3, 21, 20)


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


def test_rounds_that_differ_from_each_other_cannot_tell() -> None:
    """However alike the client and its second process were."""
    times = {0: 2.6, 1: 2.2, 2: 1.4}
    sides = {
        side.name: {**dict.fromkeys(times, 2.0), **(times if side.name == "hooks" else {})} for side in CONTESTANTS
    }
    found = [outcome(side, number, seconds) for side, of_side in sides.items() for number, seconds in of_side.items()]
    page = write_page(Outcomes(found), [], "a test", 60.0, "a machine")
    (row,) = [line for line in page.splitlines() if line.startswith("| a model: 1: 64, 2 x 8, hooks / client ")]
    assert row.split("|")[4].strip() == "cannot tell"


def test_a_plan_of_ones_own() -> None:
    """As the command line takes it."""
    assert plan_of("2048,8,128") == equal(2048, 8, 128)


@pytest.mark.parametrize(
    "text", ["", "2048,8", "many,8,128", "0,8,128", "2048,65,2", "2048,0,128", "64,8,1", "9000,64,128"]
)
def test_a_plan_that_cannot_be_measured_is_refused(text: str) -> None:
    """With its text in the message."""
    with pytest.raises(argparse.ArgumentTypeError, match=f"^{text!r}"):
        plan_of(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many"])
def test_a_number_of_rounds_below_one_is_refused(text: str) -> None:
    """It would measure nothing, or silently something else."""
    with pytest.raises(argparse.ArgumentTypeError, match=f"^{text!r} is not"):
        positive(text)


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


def test_little_kv_stands_on_the_page() -> None:
    """A row for each load, with the tokens per second of each side."""
    loaded = [Loaded(load, side.name, 100, 1000 * load) for load in LOADS for side in SIDES]
    page = write_page(Outcomes([outcome("hooks", 0, 1.0)]), loaded, "a test", 60.0, "a machine")
    assert [line.split("|")[1].strip() for line in page.splitlines()[-3:]] == ["1x", "1.5x", "2x"]
    assert page.count("1500") == len(SIDES)


def test_a_nested_sequence_goes_on_with_its_own_script() -> None:
    """After its join, whatever of its siblings' and its children's tokens are in its prompt."""
    tokens = Tokens.of(Plan(8, (4, 6), depth=2), 0)
    script = Script((*tokens.lead, *tokens.tail), tokens.children, len(tokens.prompt), len(tokens.lead))
    first, second = tokens.children
    forked = (*tokens.prompt, *tokens.lead)
    assert script.left(tokens.prompt) == script.output
    assert script.left((*forked, tokens.marks[1])) == second
    # It has sampled half of its own tokens, and got those of its children.
    assert script.left((*forked, tokens.marks[1], *second[:4], *first, *second)) == second[4:]
    assert script.left((*forked, *first, *second)) == tokens.tail


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
