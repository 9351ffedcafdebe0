# SPDX-License-Identifier: Apache-2.0
"""`make bench` and `make bench-plugin` on a small scale: one complete pass over all sides."""

from pathlib import Path

import pytest

from benchmarks.forkjoin.measure import measure
from benchmarks.forkjoin.models import SMALL
from benchmarks.forkjoin.plans import Plan, equal
from benchmarks.forkjoin.report import write
from benchmarks.forkjoin.results import Machine, Results
from benchmarks.forkjoin.sides import Workshop
from benchmarks.forkjoin.suites import Suite
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
