# SPDX-License-Identifier: Apache-2.0
"""`make bench` and `make bench-plugin` on a small scale: one complete pass over all sides, and how a run is judged."""

from functools import partial
from pathlib import Path

import pytest

from benchmarks.forkjoin import figures
from benchmarks.forkjoin.engine import Run, Step
from benchmarks.forkjoin.figures import Figures
from benchmarks.forkjoin.measure import measure
from benchmarks.forkjoin.models import LARGE, SMALL
from benchmarks.forkjoin.plans import Plan, equal
from benchmarks.forkjoin.report import write
from benchmarks.forkjoin.results import Machine, Results
from benchmarks.forkjoin.sides import AGAIN, HOOKS, OFF, UPSTREAM, Workshop
from benchmarks.forkjoin.suites import Suite
from benchmarks.forkjoin.targets import targets
from benchmarks.plugin_forkjoin import measure as plugin
from benchmarks.plugin_forkjoin.contestants import CONTESTANTS
from benchmarks.plugin_forkjoin.outcomes import Outcomes
from benchmarks.plugin_forkjoin.page import write_page

SMALLEST = Suite(
    rounds=1,
    grids=((SMALL, (equal(64, 2, 8), equal(64, 4, 8))),),
    batches=((SMALL, (equal(32, 2, 8),)),),
    batch_rounds=1,
    forests=(Plan(64, (8,) * 2, num_requests=3), Plan(64, (8,) * 2, depth=2)),
    pressure_rounds=0,
)


def make_run(*durations: float) -> Run:
    """A run whose steps only decode, except for the first."""
    steps = [Step(duration, 1, 1, model=duration / 2, processing=0.0) for duration in durations]
    steps[0].num_tokens = 100
    return Run(sum(durations), steps)


@pytest.mark.parametrize(
    ("on", "again", "rounds", "verdict"),
    [
        (1.05, 1.00, 9, "**missed**"),
        (0.97, 1.00, 9, "met"),
        (1.05, 1.00, 1, "cannot tell"),
        (0.97, 0.94, 9, "cannot tell"),
    ],
)
def test_a_run_judges_what_its_rounds_can_tell(on: float, again: float, rounds: int, verdict: str) -> None:
    """A step with hooks on is to take 1.01 of one with hooks off, and a second process with hooks off takes as long."""
    make = partial(Figures, model=LARGE.name, way="batch", elsewhere=0.0)
    found = [
        figures.of_batch(partial(make, side=kind.name, round=round_), equal(32, 1, 8), run)
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


@pytest.mark.model
@pytest.mark.full
def test_the_plug_in_takes_the_steps_of_the_fork(tmp_path: Path) -> None:
    """Steps and tokens are the same in both, with and without injection; the page has every side."""
    plans = (equal(64, 2, 8), Plan(64, (8,) * 4, num_requests=3), Plan(64, (8,) * 2, depth=3))
    kinds = tuple(dict.fromkeys(each.kind for each in CONTESTANTS))
    found = plugin.measure(plugin.Suite(1, ((SMALL, plans),)), Workshop(tmp_path, kinds))
    outcomes = Outcomes.saved(found, tmp_path / "outcomes.jsonl")
    for plan in plans:
        for ours, fork in (("hooks", "fork"), ("injection", "fork, injection")):
            (one,), (other,) = (outcomes.of(SMALL.name, side, plan) for side in (ours, fork))
            assert (one.steps, one.tokens) == (other.steps, other.tokens)
    page = write_page(outcomes, [], "a test", 60.0, "a machine")
    assert all(side.name in page for side in CONTESTANTS)
