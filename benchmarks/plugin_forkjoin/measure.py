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
from benchmarks.forkjoin.plans import Plan, equal
from benchmarks.forkjoin.quiet import Elsewhere, quietest
from benchmarks.forkjoin.sides import HOOKS, INJECTION, PLUGIN_HOOKS, STOCK, STOCK_AGAIN, Kind, Workshop
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
class Contestant:
    """A way to do the work on an engine."""

    name: str
    kind: Kind
    way: str


HOOKED = Contestant("hooks", PLUGIN_HOOKS, "by_hooks")
CLIENT = Contestant("client", STOCK, "by_client")
CONTROL = Contestant("client, again", STOCK_AGAIN, "by_client")
SEQUENCE = Contestant("in sequence", STOCK, "in_sequence")
FORK = Contestant("fork", HOOKS, "by_hooks")
INJECTING_FORK = Contestant("fork, injection", INJECTION, "by_hooks")
HOOKED_SERVER = Contestant("hooks, HTTP", Kind("hooks, served", "plug-in", PLUGIN_HOOKS.arguments), "by_hooks")
HTTP_CLIENT = Contestant("client, HTTP", Kind("vLLM 0.32, served", "plug-in"), "by_client")
IN_PROCESS = (HOOKED, CLIENT, CONTROL, SEQUENCE, FORK, INJECTING_FORK)
SERVED = (HOOKED_SERVER, HTTP_CLIENT)
CONTESTANTS = (*IN_PROCESS, *SERVED)
KINDS = tuple(dict.fromkeys(each.kind for each in IN_PROCESS))


@dataclass(frozen=True)
class Suite:
    """What is measured, and how often."""

    rounds: int
    grids: Sequence[tuple[Model, Sequence[Plan]]]
    seconds: float | None = None
    """No round begins that would end later; None measures all of them."""


def _at_once(*counts: int) -> tuple[Plan, ...]:
    return tuple(Plan(512, (64,) * 8, num_requests=count) for count in counts)


FULL = Suite(
    rounds=3,
    grids=(
        (LARGE, (*(equal(2048, fan_out, 128) for fan_out in (2, 8, 16)), equal(512, 8, 128), *_at_once(1, 8))),
        (SMALL, (equal(2048, 8, 128), *_at_once(1, 8, 64))),
    ),
)
QUICK = Suite(rounds=9, grids=((LARGE, (equal(512, 2, 32), equal(512, 8, 32))),), seconds=240)


def measure(suite: Suite, workshop: Workshop) -> Iterator[Outcome]:
    """Measure all of a suite, or what it has time for."""
    clock = Clock(suite.seconds)
    with tqdm(leave=False, unit="run") as progress:
        for model, plans in suite.grids:
            for number in clock.rounds(suite.rounds):
                with ExitStack() as stack:
                    sides: dict[Kind, Runs] = {**stack.enter_context(workshop.open(model, *KINDS))}
                    for each in SERVED:
                        sides[each.kind] = stack.enter_context(served(workshop, model, each.kind))
                    yield from _round(model, plans, number, sides, progress)


def _round(
    model: Model, plans: Sequence[Plan], number: int, sides: dict[Kind, Runs], progress: tqdm
) -> Iterator[Outcome]:
    for each in CONTESTANTS:
        sides[each.kind].run(each.way, WARM_UP, seed=0)
    start = number % len(CONTESTANTS)
    for plan in plans:
        for each in (*CONTESTANTS[start:], *CONTESTANTS[:start]):
            progress.set_description(f"{model.name}: {plan.label}, {each.name}")
            side = sides[each.kind]
            run = quietest(
                lambda: side.run(each.way, plan, seed=number + 1),  # noqa: B023
                Elsewhere(*side.pids).seconds,
            )
            yield Outcome.of(model.name, each.name, plan, number, run, BLOCK_SIZES[each.kind.environment])
            progress.update()
