# SPDX-License-Identifier: Apache-2.0
"""The target figures, each beside what was measured."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.forkjoin.models import LARGE, SMALL
from benchmarks.forkjoin.plans import Plan, equal
from benchmarks.forkjoin.results import Results, ratios
from benchmarks.forkjoin.sides import AGAIN, CACHING, HOOKS, INJECTION, OFF, UPSTREAM, Kind
from benchmarks.forkjoin.tables import markdown, with_quartiles
from benchmarks.forkjoin.verdicts import MIN_NOISE, Verdict, exact, judge, noise_of_control, noise_of_rounds

ALIKE = 0.02
"""How far an engine with hooks off may be from upstream's."""


@dataclass(frozen=True)
class Target:
    """One row of the table."""

    what: str
    against: str
    wanted: str
    measured: str
    verdict: Verdict


def targets(results: Results) -> str:
    """All targets as a table; a row whose plans were not measured is left out."""
    rows: list[Target] = []
    for row in _ROWS:
        rows += row(results)
    headers = ["what", "against", "target", "measured", ""]
    return markdown(headers, ([row.what, row.against, row.wanted, row.measured, row.verdict] for row in rows))


def _steps(results: Results) -> Iterator[Target]:
    for model in (LARGE.name, SMALL.name):
        for plan in results.plans(model, "batch"):
            on, off, again, upstream = (
                results.of(model, "batch", kind, plan) for kind in (HOOKS, OFF, AGAIN, UPSTREAM)
            )
            noise = noise_of_control(ratios(again, off, "step"))
            without, added = ratios(off, upstream, "step"), ratios(on, off, "step")
            where = f"{len(plan.lengths)} running, {model}"
            within = judge(statistics.median(without), lambda value: abs(value - 1) <= ALIKE, noise)
            name = f"`special_kwargs=None`, {where}"
            yield Target(name, "upstream 0.9.2", f"1.00 ± {ALIKE}", with_quartiles(without), within)
            cheap = judge(statistics.median(added), lambda value: value <= 1.01, noise)
            yield Target(f"hooks on, no hook token, {where}", "off", "≤ 1.01", with_quartiles(added), cheap)


def _fork(results: Results) -> Iterator[Target]:
    for plan in _measured(results, LARGE.name, equal(2048, 1, 128), equal(2048, 8, 128)):
        shares = [each.fork_share for each in results.of(LARGE.name, "by_hooks", HOOKS, plan)]
        share, verdict = _judged(shares, lambda value: value <= 0.01)
        what = f"a fork: {plan.label}, per child"
        yield Target(what, "a prefill of the context", "≤ 1 %", f"{share:.2%}", verdict)


def _flat(results: Results) -> Iterator[Target]:
    short, long = equal(512, 8, 128), equal(4096, 8, 128)
    if len(list(_measured(results, LARGE.name, short, long))) == 2:
        first, last = (results.of(LARGE.name, "by_hooks", HOOKS, plan) for plan in (short, long))
        for what, name in (("outputs", "fork_outputs"), ("first step", "fork_step")):
            growth, verdict = _judged(ratios(last, first, name), lambda value: value <= 1.1)
            what = f"a fork of 8 at a context of 4,096: {what}"
            yield Target(what, "at 512", "1.00 (flat)", f"{growth:.2f}", verdict)


def _join(results: Results) -> Iterator[Target]:
    plans = results.plans(LARGE.name, "in_sequence")
    for kind, wanted in ((HOOKS, _merged_and_last), (INJECTION, _glue)) if plans else ():
        found = [(results.of(LARGE.name, "by_hooks", kind, plan)[0].joined_tokens, wanted(plan)) for plan in plans]
        wrong = [pair for pair in found if pair[0] != pair[1]]
        text = f"{len(found) - len(wrong)} of {len(found)} plans exactly"
        tokens = "the merged and the parent's last" if kind is HOOKS else "the parent's last and the last of all"
        yield Target(f"tokens computed at a join, {kind.name}", "", tokens, text, exact(not wrong))


def _merged_and_last(plan: Plan) -> int:
    return plan.num_merged + 1


def _glue(plan: Plan) -> int:
    return 2


def _bound(results: Results) -> Iterator[Target]:
    for fan_out in (2, 4, 8, 16):
        for plan in _measured(results, LARGE.name, equal(2048, fan_out, 128)):
            for kind in (HOOKS, INJECTION):
                found = results.of(LARGE.name, "by_hooks", kind, plan)
                shares = ratios(results.bounds(LARGE.name, plan), found, "with_join")
                share, verdict = _judged(shares, lambda value: value >= 0.9)
                what = f"children and join: {plan.label}, {kind.name}"
                yield Target(what, "batched steps, hooks off", "≥ 90 %", f"{share:.0%}", verdict)


def _clients(results: Results) -> Iterator[Target]:
    for plan in _measured(results, LARGE.name, equal(1024, 8, 64)):
        for kind in (HOOKS, INJECTION):
            yield _gain(results, plan, kind, UPSTREAM, "≥ 3x", 3)
    sweep = list(_measured(results, LARGE.name, *(equal(2048, fan_out, 128) for fan_out in (1, 2, 4, 8, 16))))
    for plan in sweep:
        yield _gain(results, plan, HOOKS, CACHING, "≥ 1x", 1)
    least = 0.0
    for plan in sweep:
        wanted = ("≥ 1.2x", 1.2) if len(plan.lengths) == 8 else ("growing", least)
        row = _gain(results, plan, INJECTION, CACHING, *wanted)
        least = float(row.measured.rstrip("x"))
        yield row


def _gain(results: Results, plan: Plan, hooks: Kind, client: Kind, wanted: str, least: float) -> Target:
    sides = results.of(LARGE.name, "by_client", client, plan), results.of(LARGE.name, "by_hooks", hooks, plan)
    gain, verdict = _judged(ratios(*sides), lambda value: value >= least)
    against = "client, caching" if client is CACHING else "client, no caching"
    return Target(f"{plan.label}, {hooks.name}", against, wanted, f"{gain:.2f}x", verdict)


def _blocks(results: Results) -> Iterator[Target]:
    for plan in _measured(results, LARGE.name, equal(2048, 8, 128)):
        client, hooks = (
            results.of(LARGE.name, way, kind, plan)[0].peak_blocks
            for way, kind in (("by_client", UPSTREAM), ("by_hooks", HOOKS))
        )
        measured = f"{client / hooks:.1f}x ({hooks} against {client})"
        yield Target(
            f"peak blocks: {plan.label}", "independent copies", "≥ 5x fewer", measured, exact(client >= 5 * hooks)
        )


def _pressure(results: Results) -> Iterator[Target]:
    for load in results.loads:
        share = load["auto_to_best_fixed"]
        what = f'load {load["load"]:g}x of the KV capacity, "auto"'
        verdict = judge(share, lambda value: value >= 0.9, MIN_NOISE)
        yield Target(what, "best fixed policy", "≥ 0.90", f"{share:.2f}", verdict)


def _judged(values: Sequence[float], is_met: Callable[[float], bool]) -> tuple[float, Verdict]:
    """The median of ``values``, one of each round, and whether it meets a target."""
    middle = statistics.median(values)
    return middle, judge(middle, is_met, noise_of_rounds(values))


def _measured(results: Results, model: str, *plans: Plan) -> Iterable[Plan]:
    known: Sequence[Plan] = results.plans(model, "in_sequence")
    return (plan for plan in plans if plan in known)


_ROWS: tuple[Callable[[Results], Iterator[Target]], ...] = (
    _steps,
    _fork,
    _flat,
    _join,
    _bound,
    _clients,
    _blocks,
    _pressure,
)
