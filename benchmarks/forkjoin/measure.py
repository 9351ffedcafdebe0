# SPDX-License-Identifier: Apache-2.0
"""Runs the sides interleaved, round by round, each round in new processes."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from tqdm import tqdm

from benchmarks.forkjoin import figures
from benchmarks.forkjoin.engine import Run
from benchmarks.forkjoin.figures import Figures, Make
from benchmarks.forkjoin.models import SMALL, Model
from benchmarks.forkjoin.plans import Plan, equal
from benchmarks.forkjoin.quiet import Elsewhere, quietest
from benchmarks.forkjoin.sides import AGAIN, CACHING, HOOKS, INJECTION, KINDS, OFF, UPSTREAM, Kind, Side, Workshop
from benchmarks.forkjoin.suites import Suite

T = TypeVar("T")
Read = Callable[[Make, Plan, Run], Figures]
WAYS_OF_KINDS: tuple[tuple[str, Kind, Read], ...] = (
    ("by_hooks", HOOKS, figures.of_hooks),
    ("by_hooks", INJECTION, figures.of_hooks),
    ("by_client", CACHING, figures.of_client),
    ("by_client", UPSTREAM, figures.of_client),
)
WITHOUT_HOOK_TOKENS = (UPSTREAM, OFF, HOOKS, AGAIN)
WARM_UP = equal(64, 2, 8)


def measure(suite: Suite, workshop: Workshop) -> Iterator[Figures]:
    """Measure all of a suite but the load above the KV capacity."""
    clock = Clock(suite.seconds)
    with tqdm(leave=False, unit="run") as progress:
        for model, plans in suite.grids:
            for number in clock.rounds(suite.rounds):
                with workshop.open(model, *KINDS, tell=progress.set_description) as sides:
                    yield from _Round(model, sides, number, progress).grid(plans)
        for number in clock.rounds(suite.rounds):
            with workshop.open(SMALL, HOOKS, INJECTION, CACHING, tell=progress.set_description) as sides:
                yield from _Round(SMALL, sides, number, progress).forests(suite.forests)
        # Last: what time is left makes these, of which most rounds are needed, more certain.
        for model, plans in suite.batches:
            for number in clock.rounds(suite.batch_rounds):
                with workshop.open(model, *WITHOUT_HOOK_TOKENS, tell=progress.set_description) as sides:
                    yield from _Round(model, sides, number, progress).batches(plans)


class Clock:
    """Says which rounds may begin.

    Args:
        seconds: How long all of them may take; None does not limit them.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = math.inf if seconds is None else time.perf_counter() + seconds

    def rounds(self, count: int) -> Iterator[int]:
        """The numbers of at most ``count`` rounds of the same kind, each of which may take as long as the last one."""
        start, last = time.perf_counter(), 0.0
        for number in range(count):
            if start + last > self._end:
                return
            yield number
            start, last = time.perf_counter(), time.perf_counter() - start


class _Round:
    """The engines of one model, in one round."""

    def __init__(self, model: Model, sides: dict[Kind, Side], number: int, progress: tqdm) -> None:
        self._model, self._sides, self._number, self._progress = model, sides, number, progress
        for kind, side in sides.items():
            side.run("batch", WARM_UP, seed=0)
            if kind in (HOOKS, INJECTION):
                side.run("by_hooks", WARM_UP, seed=0)

    def grid(self, plans: Sequence[Plan]) -> Iterator[Figures]:
        """One fork and join, every way. In sequence, a run of a context's longest plan serves its shorter ones."""
        for plan in plans:
            for way, kind, read in _rotated(WAYS_OF_KINDS, self._number):
                yield self._figures(read, way, kind, plan)
        longest = {plan.context: plan for plan in sorted(plans, key=lambda plan: plan.num_merged)}
        for context, plan in longest.items():
            run = self._run("in_sequence", UPSTREAM, plan)
            for shorter in plans:
                if shorter.context == context:
                    yield figures.of_sequence(self._make("in_sequence", UPSTREAM, run), shorter, run)

    def batches(self, plans: Sequence[Plan]) -> Iterator[Figures]:
        """Plain requests, with hooks and without."""
        for plan in plans:
            for kind in _rotated(WITHOUT_HOOK_TOKENS, self._number):
                yield self._figures(figures.of_batch, "batch", kind, plan)

    def forests(self, plans: Sequence[Plan]) -> Iterator[Figures]:
        """Many requests, or one of many sequences; deep ones only by hooks: a client would need a round per level."""
        for plan in plans:
            for way, kind, _ in _rotated(WAYS_OF_KINDS[:3], self._number):
                if way == "by_hooks" or plan.depth == 1:
                    yield self._figures(figures.of_many, way, kind, plan)

    def _figures(self, read: Read, way: str, kind: Kind, plan: Plan) -> Figures:
        run = self._run(way, kind, plan)
        return read(self._make(way, kind, run), plan, run)

    def _make(self, way: str, kind: Kind, run: Run) -> Make:
        whose = partial(Figures, model=self._model.name, side=kind.name, way=way, round=self._number)
        return partial(whose, elsewhere=run.elsewhere)

    def _run(self, way: str, kind: Kind, plan: Plan) -> Run:
        self._progress.set_description(f"{self._model.name}: {plan.label}, {kind.name}, {way}")
        side = self._sides[kind]
        run = quietest(lambda: side.run(way, plan, seed=self._number + 1), Elsewhere(*side.pids).seconds)
        self._progress.update()
        return run


def _rotated(items: Sequence[T], by: int) -> list[T]:
    start = by % len(items)
    return [*items[start:], *items[:start]]
