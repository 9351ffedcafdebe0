# SPDX-License-Identifier: Apache-2.0
"""The figures to reach, each judged by the rounds of its own rows."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.forkjoin.models import LARGE, SMALL
from benchmarks.forkjoin.plans import Plan, equal
from benchmarks.forkjoin.tables import with_quartiles
from benchmarks.forkjoin.verdicts import Verdict, exact, judge, noise_of_control, noise_of_rounds
from benchmarks.plugin_forkjoin.contestants import (
    CLIENT,
    CONTROL,
    FORK,
    HOOKED,
    HTTP_CLIENT,
    INJECTING,
    INJECTING_SERVER,
    Contestant,
)
from benchmarks.plugin_forkjoin.measure import FORKS, MANY
from benchmarks.plugin_forkjoin.outcomes import Outcomes


@dataclass(frozen=True)
class Target:
    """One row of the table of targets."""

    what: str
    target: str
    figure: str
    verdict: Verdict


@dataclass(frozen=True)
class _Gain:
    """``side`` is to be ``least`` times as fast as ``against``."""

    side: Contestant
    against: Contestant
    least: float
    model: str
    plan: Plan


_GAINS = (
    _Gain(INJECTING, CLIENT, 1.4, LARGE.name, equal(2048, 8, 128)),
    _Gain(INJECTING, CLIENT, 1.6, LARGE.name, equal(2048, 16, 128)),
    *(
        _Gain(INJECTING_SERVER, HTTP_CLIENT, least, LARGE.name, Plan(512, (64,) * 8, num_requests=count))
        for count, least in ((1, 1.5), (8, 1.3))
    ),
    _Gain(INJECTING, CLIENT, 1.3, SMALL.name, MANY),
)
_SHARES = ((INJECTING, 0.95), (HOOKED, 0.9))
_MIN_CHILDREN, _MAX_CHILDREN = 2, 16
_FLAT = 1.2


def targets(outcomes: Outcomes) -> Iterator[Target]:
    """Those that a run has measured."""
    for each in _GAINS:
        gains = outcomes.gains(each.model, each.side.name, each.against.name, each.plan)
        if gains:
            yield _judged(outcomes, each.model, each.plan, f"{each.side.name} / {each.against.name}", gains, each.least)
    for side, against in ((HOOKED, CLIENT), (HOOKED, FORK)):
        for model in outcomes.models:
            for plan in outcomes.plans(model):
                if gains := outcomes.gains(model, side.name, against.name, plan):
                    yield _judged(outcomes, model, plan, f"{side.name} / {against.name}", gains, 1.0)
    yield from _shares(outcomes)
    yield from _forks(outcomes)


def _judged(outcomes: Outcomes, model: str, plan: Plan, what: str, gains: list[float], least: float) -> Target:
    control = outcomes.gains(model, CONTROL.name, CLIENT.name, plan)
    # No client forks twice, so that such trees have no control.
    noise = max(noise_of_rounds(gains), noise_of_control(control) if control else 0.0)
    verdict = judge(statistics.median(gains), lambda gain: gain >= least, noise)
    return Target(f"{model}: {label(plan)}, {what}", f"≥ {least}", with_quartiles(gains), verdict)


def _shares(outcomes: Outcomes) -> Iterator[Target]:
    for plan in outcomes.plans(LARGE.name) if LARGE.name in outcomes.models else ():
        for side, least in _SHARES:
            if plan.num_requests > 1 or not _MIN_CHILDREN <= len(plan.lengths) <= _MAX_CHILDREN:
                continue
            if shares := outcomes.shares(LARGE.name, side.name, CLIENT.name, plan):
                verdict = judge(statistics.median(shares), lambda share: share >= least, noise_of_rounds(shares))  # noqa: B023
                what = f"{LARGE.name}: {label(plan)}, batched steps / {side.name}"
                yield Target(what, f"≥ {least:.0%}", with_quartiles(shares), verdict)


def _forks(outcomes: Outcomes) -> Iterator[Target]:
    """What a fork takes outside the model, after contexts of several lengths."""
    if SMALL.name not in outcomes.models:
        return
    found = [outcomes.of(SMALL.name, HOOKED.name, plan) for plan in FORKS]
    if not all(found):
        return
    millis = [1000 * statistics.median(each.tree.fork for each in of_plan) for of_plan in found]
    contexts = ", ".join(str(plan.context) for plan in FORKS)
    figure = ", ".join(f"{each:.1f}" for each in millis) + " ms"
    yield Target(
        f"{SMALL.name}: a fork of 8, outside the model, after {contexts} tokens",
        f"flat within {_FLAT - 1:.0%}",
        figure,
        exact(max(millis) <= _FLAT * min(millis)),
    )


def label(plan: Plan) -> str:
    """The plan in short, with the number of trees."""
    return f"{plan.num_requests}: {plan.label}" + (f", depth {plan.depth}" if plan.depth > 1 else "")
