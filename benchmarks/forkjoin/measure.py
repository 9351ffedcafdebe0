# SPDX-License-Identifier: Apache-2.0
"""Runs the sides in turns, round by round."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tqdm import tqdm

from benchmarks.forkjoin import figures
from benchmarks.forkjoin.engine import Run
from benchmarks.forkjoin.figures import Figures
from benchmarks.forkjoin.models import SMALL, Model
from benchmarks.forkjoin.plans import Plan, equal
from benchmarks.forkjoin.sides import CACHING, HOOKS, INJECTION, KINDS, OFF, UPSTREAM, Kind, Side, Workshop
from benchmarks.forkjoin.suites import Suite

T = TypeVar("T")
Read = Callable[[str, str, Plan, int, Run], Figures]
WAYS_OF_KINDS: tuple[tuple[str, Kind, Read], ...] = (
    ("by_hooks", HOOKS, figures.of_hooks),
    ("by_hooks", INJECTION, figures.of_hooks),
    ("by_client", CACHING, figures.of_client),
    ("by_client", UPSTREAM, figures.of_client),
)
WARM_UP = equal(64, 2, 8)


def measure(suite: Suite, workshop: Workshop) -> list[Figures]:
    """All of a suite but the load above the KV capacity."""
    found: list[Figures] = []
    with tqdm(leave=False, unit="run") as progress:
        for model, plans in suite.grids:
            with workshop.open(model, *KINDS) as sides:
                found += _Runs(model, sides, progress).grid(plans, suite.rounds)
        for model, plans in suite.batches:
            with workshop.open(model, UPSTREAM, OFF, HOOKS) as sides:
                found += _Runs(model, sides, progress).batches(plans, suite.batch_rounds)
        with workshop.open(SMALL, HOOKS, INJECTION, CACHING) as sides:
            found += _Runs(SMALL, sides, progress).forests(suite.forests, suite.rounds)
    return found


class _Runs:
    """The engines of one model."""

    def __init__(self, model: Model, sides: dict[Kind, Side], progress: tqdm) -> None:
        self._model, self._sides, self._progress = model, sides, progress
        for kind, side in sides.items():
            side.run("batch", WARM_UP, seed=0)
            if kind in (HOOKS, INJECTION):
                side.run("by_hooks", WARM_UP, seed=0)

    def grid(self, plans: Sequence[Plan], rounds: int) -> Iterator[Figures]:
        """One fork and join, every way. The longest plan of a context, run in sequence, holds the shorter ones."""
        longest = {plan.context: plan for plan in sorted(plans, key=lambda plan: plan.num_merged)}
        for round_ in range(rounds):
            for plan in plans:
                for way, kind, read in _rotated(WAYS_OF_KINDS, round_):
                    yield read(self._model.name, kind.name, plan, round_, self._run(way, kind, plan, round_))
            for context, plan in longest.items():
                run = self._run("in_sequence", UPSTREAM, plan, round_)
                for shorter in plans:
                    if shorter.context == context:
                        yield figures.of_sequence(self._model.name, UPSTREAM.name, shorter, round_, run)

    def batches(self, plans: Sequence[Plan], rounds: int) -> Iterator[Figures]:
        """Plain requests, with hooks and without."""
        for round_ in range(rounds):
            for plan in plans:
                for kind in _rotated((UPSTREAM, OFF, HOOKS), round_):
                    run = self._run("batch", kind, plan, round_)
                    yield figures.of_batch(self._model.name, kind.name, plan, round_, run)

    def forests(self, plans: Sequence[Plan], rounds: int) -> Iterator[Figures]:
        """Many requests, or one of many sequences; a client would need a round of requests for each level."""
        for round_ in range(rounds):
            for plan in plans:
                for way, kind, _ in _rotated(WAYS_OF_KINDS[:3], round_):
                    if way == "by_hooks" or plan.depth == 1:
                        run = self._run(way, kind, plan, round_)
                        yield figures.of_many(self._model.name, kind.name, way, plan, round_, run)

    def _run(self, way: str, kind: Kind, plan: Plan, round_: int) -> Run:
        self._progress.set_description(f"{self._model.name}: {plan.label}, {kind.name}, {way}")
        run = self._sides[kind].run(way, plan, seed=round_ + 1)
        self._progress.update()
        return run


def _rotated(items: Sequence[T], by: int) -> list[T]:
    start = by % len(items)
    return [*items[start:], *items[:start]]
