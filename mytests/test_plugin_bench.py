# SPDX-License-Identifier: Apache-2.0
"""`make bench-plugin` on a small scale: what a run has cost, and one complete pass over all sides."""

from pathlib import Path

import pytest

from benchmarks.forkjoin.engine import Run, Step
from benchmarks.forkjoin.models import SMALL
from benchmarks.forkjoin.plans import Plan, equal
from benchmarks.forkjoin.sides import Workshop
from benchmarks.plugin_forkjoin.measure import CONTESTANTS, KINDS, Suite, measure
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
    page = write_page(Outcomes(found), "a test", 60.0, "a machine")
    (row,) = [line for line in page.splitlines() if line.startswith("| 1: 64, 2 x 8")][:1]
    assert row.split("|")[3].strip() == verdict


@pytest.mark.model
def test_every_side_samples_the_script_and_stands_on_the_page(tmp_path: Path) -> None:
    """A worker raises at any other token; steps and tokens are the same in the fork and with the plug-in."""
    plans = (equal(64, 2, 8), Plan(64, (8,) * 4, num_requests=3))
    found = list(measure(Suite(1, ((SMALL, plans),)), Workshop(tmp_path, KINDS)))
    outcomes = Outcomes(found)
    for plan in plans:
        (plugin,), (fork,) = (outcomes.of(SMALL.name, side, plan) for side in ("hooks", "fork"))
        assert (plugin.steps, plugin.tokens) == (fork.steps, fork.tokens)
    page = write_page(outcomes, "a test", 60.0, "a machine")
    assert page.count("| 1: 64, 2 x 8") == page.count("| 3: 64, 4 x 8") == 9
    outcomes.save(tmp_path / "outcomes.jsonl")
    assert len((tmp_path / "outcomes.jsonl").read_text().splitlines()) == len(outcomes) == 16
