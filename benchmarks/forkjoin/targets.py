# SPDX-License-Identifier: Apache-2.0
"""The figures to reach, each beside what was measured."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.forkjoin.figures import Figures
from benchmarks.forkjoin.models import LARGE, SMALL
from benchmarks.forkjoin.plans import Plan, equal
from benchmarks.forkjoin.results import Results, ratio, ratios
from benchmarks.forkjoin.sides import CACHING, HOOKS, INJECTION, OFF, UPSTREAM
from benchmarks.forkjoin.tables import markdown, with_quartiles

NOISE = 0.02
"""What two runs of the same engine differ by, at the least, on a shared machine."""


@dataclass(frozen=True)
class Target:
    """One row."""

    what: str
    against: str
    wanted: str
    measured: str
    met: bool


def targets(results: Results) -> str:
    """As a table; a row whose plans were not measured is left out."""
    rows: list[Target] = []
    for row in _ROWS:
        rows += row(results)
    headers = ["what", "against", "target", "measured", ""]
    return markdown(headers, ([*_texts(row), "met" if row.met else "**missed**"] for row in rows))


def _texts(row: Target) -> list[str]:
    return [row.what, row.against, row.wanted, row.measured]


def _hooks_off(results: Results) -> Iterator[Target]:
    for model in (LARGE.name, SMALL.name):
        for plan in results.plans(model, "batch"):
            off, upstream = (results.of(model, "batch", kind, plan) for kind in (OFF, UPSTREAM))
            found = ratios(off, upstream, _step)
            what = f"`special_kwargs=None`, {len(plan.lengths)} running, {model}"
            within = abs(statistics.median(found) - 1) <= NOISE
            yield Target(what, "upstream 0.9.2", f"1.00 ± {NOISE}", with_quartiles(found), within)


def _hooks_on(results: Results) -> Iterator[Target]:
    for model in (LARGE.name, SMALL.name):
        for plan in results.plans(model, "batch"):
            on, off = (results.of(model, "batch", kind, plan) for kind in (HOOKS, OFF))
            found = ratios(on, off, _step)
            what = f"hooks on, no hook token, {len(plan.lengths)} running, {model}"
            yield Target(what, "off", "≤ 1.01", with_quartiles(found), statistics.median(found) <= 1.01)


def _fork(results: Results) -> Iterator[Target]:
    for plan in _measured(results, LARGE.name, equal(2048, 1, 128), equal(2048, 8, 128)):
        found = [each.fork / each.prefill for each in results.of(LARGE.name, "by_hooks", HOOKS, plan)]
        share = statistics.median(found) / len(plan.lengths)
        yield Target(
            f"a fork: {plan.label}, per child", "a prefill of the context", "≤ 1 %", f"{share:.2%}", share <= 0.01
        )


def _flat(results: Results) -> Iterator[Target]:
    short, long = equal(512, 8, 128), equal(4096, 8, 128)
    if len(list(_measured(results, LARGE.name, short, long))) == 2:
        first, last = (results.of(LARGE.name, "by_hooks", HOOKS, plan) for plan in (short, long))
        growth = ratio(last, first, _fork_seconds)
        yield Target("a fork at a context of 4,096", "at 512", "1.00 (flat)", f"{growth:.2f}", growth <= 1.1)


def _join(results: Results) -> Iterator[Target]:
    for kind, wanted in ((HOOKS, _merged_and_last), (INJECTION, _glue)):
        plans = results.plans(LARGE.name, "in_sequence")
        found = [(results.of(LARGE.name, "by_hooks", kind, plan)[0].joined_tokens, wanted(plan)) for plan in plans]
        wrong = [pair for pair in found if pair[0] != pair[1]]
        text = f"{len(found) - len(wrong)} of {len(found)} plans exactly"
        tokens = "the merged and the parent's last" if kind is HOOKS else "the parent's last and the last of all"
        yield Target(f"tokens computed at a join, {kind.name}", "", tokens, text, not wrong)


def _merged_and_last(plan: Plan) -> int:
    return plan.num_merged + 1


def _glue(plan: Plan) -> int:
    return 2


def _bound(results: Results) -> Iterator[Target]:
    for fan_out in (2, 4, 8, 16):
        for plan in _measured(results, LARGE.name, equal(2048, fan_out, 128)):
            bounds, injection = results.bounds(LARGE.name, plan), results.of(LARGE.name, "by_hooks", INJECTION, plan)
            share = ratio(bounds, injection, _with_join)
            what = f"children and join: {plan.label}, injection"
            yield Target(what, "batched steps, hooks off", "≥ 90 %", f"{share:.0%}", share >= 0.9)


def _clients(results: Results) -> Iterator[Target]:
    for plan in _measured(results, LARGE.name, equal(1024, 8, 64)):
        client = results.of(LARGE.name, "by_client", UPSTREAM, plan)
        gain = ratio(client, results.of(LARGE.name, "by_hooks", HOOKS, plan))
        yield Target(f"{plan.label}, conditional prefill", "client, no caching", "≥ 3x", f"{gain:.2f}x", gain >= 3)
    sweep = [equal(2048, fan_out, 128) for fan_out in (1, 2, 4, 8, 16)]
    for plan in _measured(results, LARGE.name, *sweep):
        cached = results.of(LARGE.name, "by_client", CACHING, plan)
        gain = ratio(cached, results.of(LARGE.name, "by_hooks", HOOKS, plan))
        yield Target(f"{plan.label}, conditional prefill", "client, caching", "≥ 1x", f"{gain:.2f}x", gain >= 1)
    for plan in _measured(results, LARGE.name, *sweep[1:]):
        cached = results.of(LARGE.name, "by_client", CACHING, plan)
        gain = ratio(cached, results.of(LARGE.name, "by_hooks", INJECTION, plan))
        wanted, least = ("≥ 1.2x", 1.2) if len(plan.lengths) == 8 else ("growing", 1.0)
        yield Target(f"{plan.label}, KV injection", "client, caching", wanted, f"{gain:.2f}x", gain >= least)


def _blocks(results: Results) -> Iterator[Target]:
    for plan in _measured(results, LARGE.name, equal(2048, 8, 128)):
        client, hooks = (
            results.of(LARGE.name, way, kind, plan)[0].peak_blocks
            for way, kind in (("by_client", UPSTREAM), ("by_hooks", HOOKS))
        )
        measured = f"{client / hooks:.1f}x ({hooks} against {client})"
        yield Target(f"peak blocks: {plan.label}", "independent copies", "≥ 5x fewer", measured, client >= 5 * hooks)


def _pressure(results: Results) -> Iterator[Target]:
    for load in results.loads:
        share = load["auto_to_best_fixed"]
        what = f'load {load["load"]:g}x of the KV capacity, "auto"'
        yield Target(what, "best fixed policy", "≥ 0.90", f"{share:.2f}", share >= 0.9)


def _step(figures: Figures) -> float:
    return figures.step


def _fork_seconds(figures: Figures) -> float:
    return figures.fork


def _with_join(figures: Figures) -> float:
    return figures.children + figures.join


def _measured(results: Results, model: str, *plans: Plan) -> Iterable[Plan]:
    known: Sequence[Plan] = results.plans(model, "in_sequence")
    return (plan for plan in plans if plan in known)


_ROWS: tuple[Callable[[Results], Iterator[Target]], ...] = (
    _hooks_off,
    _hooks_on,
    _fork,
    _flat,
    _join,
    _bound,
    _clients,
    _blocks,
    _pressure,
)
