# SPDX-License-Identifier: Apache-2.0
"""`make bench` on a small scale: its scripts, its figures of a run, and one complete pass over all sides."""

import time
from functools import partial
from itertools import accumulate, chain, count
from pathlib import Path

import pytest

from benchmarks.forkjoin import figures
from benchmarks.forkjoin.engine import Run, Step
from benchmarks.forkjoin.figures import Figures
from benchmarks.forkjoin.measure import measure
from benchmarks.forkjoin.models import LARGE, SMALL
from benchmarks.forkjoin.plans import EOS, Plan, Tokens, equal, skewed
from benchmarks.forkjoin.quiet import quietest
from benchmarks.forkjoin.report import write
from benchmarks.forkjoin.results import Machine, Results
from benchmarks.forkjoin.sides import AGAIN, HOOKS, OFF, UPSTREAM, Workshop
from benchmarks.forkjoin.suites import Suite
from benchmarks.forkjoin.targets import targets

SMALLEST = Suite(
    rounds=1,
    grids=((SMALL, (equal(64, 2, 8), equal(64, 4, 8))),),
    batches=((SMALL, (equal(32, 2, 8),)),),
    batch_rounds=1,
    forests=(Plan(64, (8,) * 2, num_requests=3), Plan(64, (8,) * 2, depth=2)),
    pressure_rounds=0,
)


MAKE = partial(Figures, model="model", side="side", way="way", round=0, elsewhere=0.0)


def make_run(*durations: float, num_seqs: int = 1) -> Run:
    """A run whose steps only decode, except for the first."""
    steps = [Step(duration, num_seqs, num_seqs, model=duration / 2, processing=0.0) for duration in durations]
    steps[0].num_tokens = 100
    return Run(sum(durations), steps)


class TestPlans:
    def test_a_parent_gets_what_its_children_sampled_but_their_eos(self) -> None:
        """The output of a parent is its lead, all children's tokens in spawn order, and its tail."""
        tokens = Tokens.of(equal(16, 2, 4), seed=1)
        first, second = tokens.children
        assert tokens.whole() == (*tokens.lead, *first[:3], *second[:3], *tokens.tail)
        assert first[3] == second[3] == EOS

    def test_skewed_lengths_have_the_mean_of_equal_ones(self) -> None:
        """Their mean is the same, so both plans sample equally many tokens."""
        lengths = skewed(16, 8, 128).lengths
        assert sum(lengths) == 8 * 128 and max(lengths) > 1.8 * 128


class TestFigures:
    def test_a_longer_run_in_sequence_holds_a_shorter_plan(self) -> None:
        """The plan's time is that of the run's first steps, one for each token of the plan."""
        plan = Plan(16, (3, 3), lead=2, tail=2)
        found = figures.of_sequence(MAKE, plan, make_run(5.0, *[1.0] * 20))
        assert (found.seconds, found.prefill, found.children, found.join, found.tail) == (12.0, 5.0, 4.0, 1.0, 1.0)

    def test_a_fork_and_join_is_split_at_the_fork_and_at_the_join(self) -> None:
        """The parts are the lead, the longest child's steps, the step of the join, and the rest of the tail."""
        plan = Plan(16, (2, 3), lead=2, tail=2)
        found = figures.of_hooks(MAKE, plan, make_run(9.0, 1.0, 4.0, 2.0, 2.0, 7.0, 1.0))
        assert (found.children, found.join, found.tail, found.fork, found.step) == (8.0, 7.0, 1.0, 2.0, 2.0)


class TestQuiet:
    @pytest.mark.parametrize(("busy", "chosen"), [([5.0, 0.0, 9.0], 1), ([9.0, 5.0, 7.0], 1), ([0.0, 9.0, 9.0], 0)])
    def test_a_disturbed_run_is_measured_again(
        self, monkeypatch: pytest.MonkeyPatch, busy: list[float], chosen: int
    ) -> None:
        """It is repeated until the machine is otherwise idle, at most three times; the least disturbed run counts."""
        monkeypatch.setattr(time, "perf_counter", count().__next__)
        clock = accumulate(chain.from_iterable((0.0, each) for each in busy))
        runs = [Run() for _ in busy]
        assert quietest(iter(runs).__next__, clock.__next__) is runs[chosen]


@pytest.mark.parametrize(
    ("on", "again", "rounds", "verdict"),
    [
        (1.05, 1.00, 9, "**missed**"),
        (0.97, 1.00, 9, "met"),
        (1.20, 1.00, 1, "**missed**"),
        (1.05, 1.00, 1, "cannot tell"),
        (1.02, 1.00, 1, "cannot tell"),
        (1.00, 1.00, 1, "cannot tell"),
        (1.05, 1.06, 9, "cannot tell"),
        (0.97, 0.94, 9, "cannot tell"),
    ],
)
def test_a_run_judges_what_its_rounds_can_tell(on: float, again: float, rounds: int, verdict: str) -> None:
    """A step with hooks on is to take 1.01 of one with hooks off, and a second process with hooks off takes as long."""
    plan = equal(32, 1, 8)
    found = [
        figures.of_batch(partial(MAKE, model=LARGE.name, side=kind.name, way="batch", round=round_), plan, run)
        for kind, seconds in ((UPSTREAM, 1.0), (OFF, 1.0), (HOOKS, on), (AGAIN, again))
        for round_, run in enumerate([make_run(9.0, seconds, seconds)] * rounds)
    ]
    rows = targets(Results("a test", True, 1.0, Machine("cpu", 2, 2, "3.11", {}), found, [])).splitlines()
    assert rows[-1].split("|")[-2].strip() == verdict


@pytest.mark.model
@pytest.mark.full
def test_every_side_samples_the_script_and_stands_on_the_page(tmp_path: Path) -> None:
    """Sides are upstream, its clients, and this fork with and without hooks; a worker raises at any other token."""
    workshop, page = tmp_path / "workshop", tmp_path / "page"
    workshop.mkdir()
    found = list(measure(SMALLEST, Workshop(workshop)))
    write(Results("a test", True, 1.0, Machine.this(), found, []), page)
    text = (page / "benchmarks.md").read_text()
    assert text.count("| 64, 2 x 8") == 4 and "| 3 x 2" in text and "depth 2" in text
    assert (page / "images" / "speedup.png").stat().st_size > 0
