# SPDX-License-Identifier: Apache-2.0
"""Runs the sides interleaved, round by round, each round in new processes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from tqdm import tqdm

from benchmarks.forkjoin.engine import Run
from benchmarks.forkjoin.measure import WARM_UP, Clock
from benchmarks.forkjoin.models import LARGE, SMALL, Model
from benchmarks.forkjoin.plans import Plan, equal, skewed
from benchmarks.forkjoin.quiet import Elsewhere, quietest
from benchmarks.forkjoin.sides import Kind, Workshop
from benchmarks.plugin_forkjoin.contestants import CONTESTANTS, Contestant
from benchmarks.plugin_forkjoin.outcomes import Outcome
from benchmarks.plugin_forkjoin.served import served

BLOCK_SIZES = {"plug-in": 32, "fork": 16}


class Runs(Protocol):
    """A side, in a process of its own."""

    @property
    def pids(self) -> list[int]:
        """The processes that do its work."""

    def run(self, way: str, plan: Plan, seed: int) -> Run:
        """Do the work of ``plan``."""


@dataclass(frozen=True)
class Suite:
    """What is measured, and how often."""

    rounds: int
    grids: Sequence[tuple[Model, Sequence[Plan]]]
    seconds: float | None = None
    """No round begins that would end later; None measures all of them."""


def _at_once(*counts: int) -> tuple[Plan, ...]:
    return tuple(Plan(512, (64,) * 8, num_requests=count) for count in counts)


MANY, DEEP = Plan(64, (8,) * 8, num_requests=1000), Plan(256, (16,) * 2, depth=4)
FORKS = tuple(equal(context, 8, 32) for context in (512, 2048, 8192))
"""They show what a fork takes outside the model."""

_BY_FAN_OUT = tuple(equal(2048, fan_out, 128) for fan_out in (1, 2, 4, 8, 16))
_OTHERS = (equal(512, 8, 128), equal(4096, 8, 128), equal(2048, 8, 32), skewed(2048, 8, 128))
FULL = Suite(
    rounds=3,
    grids=(
        (LARGE, (*_BY_FAN_OUT, *_OTHERS, *_at_once(1, 8))),
        (SMALL, (equal(2048, 8, 128), *FORKS, *_at_once(1, 8, 64), DEEP, MANY)),
    ),
)
QUICK = Suite(rounds=9, grids=((LARGE, (equal(512, 2, 32), equal(512, 8, 32))),), seconds=240)


def measure(suite: Suite, workshop: Workshop, contestants: Sequence[Contestant] = CONTESTANTS) -> Iterator[Outcome]:
    """Measure all of a suite, or what it has time for."""
    clock = Clock(suite.seconds)
    in_process = dict.fromkeys(each.kind for each in contestants if not each.is_served)
    with tqdm(leave=False, unit="run") as progress:
        for model, plans in suite.grids:
            for number in clock.rounds(suite.rounds):
                with ExitStack() as stack:
                    tell = progress.set_description
                    sides: dict[Kind, Runs] = {**stack.enter_context(workshop.open(model, *in_process, tell=tell))}
                    for each in contestants:
                        if each.is_served:
                            tell(f"{model.name}: starting {each.name}")
                            sides[each.kind] = stack.enter_context(served(workshop, model, each.kind))
                    yield from _round(model, plans, number, contestants, sides, progress)


def _round(
    model: Model,
    plans: Sequence[Plan],
    number: int,
    contestants: Sequence[Contestant],
    sides: dict[Kind, Runs],
    progress: tqdm,
) -> Iterator[Outcome]:
    for each in contestants:
        progress.set_description(f"{model.name}: warming up {each.name}")
        sides[each.kind].run(each.way, WARM_UP, seed=0)
    start = number % len(contestants)
    for plan in plans:
        for each in (*contestants[start:], *contestants[:start]):
            if not each.does(plan):
                continue
            progress.set_description(f"{model.name}: {plan.label}, {each.name}")
            side = sides[each.kind]
            # Sides that wait are not idle altogether, but they are the same in every run.
            ours = [pid for other in sides.values() for pid in other.pids]
            run = quietest(
                lambda: side.run(each.way, plan, seed=number + 1),  # noqa: B023
                Elsewhere(*ours).seconds,
            )
            yield Outcome.of(model.name, each.name, plan, number, run, BLOCK_SIZES[each.kind.environment])
            progress.update()
