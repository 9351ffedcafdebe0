# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/figures/benchmarks.md."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from tabulate import tabulate

from benchmarks.forkjoin.figures import Figures
from benchmarks.forkjoin.models import SMALL
from benchmarks.forkjoin.plans import Plan
from benchmarks.forkjoin.results import Results, median, ratio, ratios, spread
from benchmarks.forkjoin.sides import AGAIN, CACHING, HOOKS, INJECTION, OFF, UPSTREAM
from benchmarks.forkjoin.verdicts import quartiles

BLOCK_SIZE = 16
"""Of V0's engines, in tokens."""


def markdown(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    align = ("left", *("right",) * (len(headers) - 1))
    return tabulate(list(rows), headers=headers, tablefmt="pipe", colalign=align, disable_numparse=True)


def end_to_end(results: Results, model: str) -> str:
    """Seconds of whole requests, for each way."""
    headers = ["context, children", "in sequence", "client", "client, caching", "hooks", "hooks, injection", "bound"]
    return markdown(headers, (_seconds_row(results, model, plan) for plan in results.plans(model, "in_sequence")))


def speed_ups(results: Results, model: str) -> str:
    """Ratios of whole requests, and how much of the bound is reached from the fork to the tail."""
    headers = ["context, children", "bound", "hooks", "injection", "children only", "with join", "injection"]
    headers += ["client / hooks", "caching / hooks", "caching / injection"]
    return markdown(headers, (_ratio_row(results, model, plan) for plan in results.plans(model, "in_sequence")))


def joins(results: Results, model: str) -> str:
    """What a join makes the model compute, and the blocks in use."""
    headers = ["context, children", "merged", "tokens: hooks", "injection", "client, caching", "ms: hooks", "injection"]
    headers += ["client, caching", "blocks: hooks", "client", "ratio"]
    return markdown(headers, (_join_row(results, model, plan) for plan in results.plans(model, "in_sequence")))


def forks(results: Results, model: str) -> str:
    """What a fork costs against a prefill of the context that its children share."""
    headers = ["context, children", "outputs, ms", "first step, ms", "prefill, ms", "per child / prefill"]
    rows = []
    for plan in sorted(results.plans(model, "in_sequence"), key=lambda plan: (plan.context, len(plan.lengths))):
        found = results.of(model, "by_hooks", HOOKS, plan)
        outputs, step, prefill = (median(found, name) * 1e3 for name in ("fork_outputs", "fork_step", "prefill"))
        share = median(found, "fork_share")
        rows.append([plan.label, f"{outputs:.2f}", f"{step:.1f}", f"{prefill:.0f}", f"{share:.2%}"])
    return markdown(headers, rows)


def steps(results: Results, model: str) -> str:
    """A step of plain requests, with hooks and without."""
    headers = ["running", "upstream, ms", "hooks off / upstream", "hooks on / off", "off, again / off"]
    headers += ["outside the model, ms: off", "on"]
    rows = []
    for plan in results.plans(model, "batch"):
        upstream, off, on = (results.of(model, "batch", kind, plan) for kind in (UPSTREAM, OFF, HOOKS))
        again = results.of(model, "batch", AGAIN, plan)
        step, *outside = (median(*pair) * 1e3 for pair in ((upstream, "step"), (off, "outside"), (on, "outside")))
        pairs = [with_quartiles(ratios(*sides, "step")) for sides in ((off, upstream), (on, off), (again, off))]
        rows.append([str(len(plan.lengths)), f"{step:.2f}", *pairs, *(f"{each:.2f}" for each in outside)])
    return markdown(headers, rows)


def forests(results: Results) -> str:
    """Many requests at once: sampled tokens per second, and the engine's time per token."""
    headers = ["requests x children", "tokens", "hooks, tokens/s", "injection", "client, caching", "hooks / client"]
    headers += ["outside the model, µs a token: hooks", "injection", "client", "peak blocks: hooks", "least", "client"]
    plans = [plan for plan in results.plans(SMALL.name, "by_hooks") if results.of(SMALL.name, "by_hooks", HOOKS, plan)]
    return markdown(headers, (_forest_row(results, plan) for plan in plans if _is_forest(plan)))


def throughput(runs: Sequence[dict[str, Any]]) -> float:
    """The median of runs of `benchmarks.bench_pressure`, in sampled tokens per second."""
    return statistics.median(run["sampled"] / run["seconds"] for run in runs)


def with_quartiles(values: Sequence[float]) -> str:
    """The median, with the lower and the upper quartile."""
    low, middle, high = quartiles(values)
    return f"{middle:.3f} ({low:.3f}-{high:.3f})" if len(values) > 1 else f"{middle:.3f}"


def _seconds_row(results: Results, model: str, plan: Plan) -> list[str]:
    sides = [results.of(model, "in_sequence", UPSTREAM, plan), results.of(model, "by_client", UPSTREAM, plan)]
    sides += [results.of(model, way, kind, plan) for way, kind in _TREES]
    figures = [f"{median(side):.2f} ± {spread(side) / 2:.0%}" for side in sides]
    return [plan.label, *figures, f"{median(results.bounds(model, plan)):.2f}"]


_TREES = (("by_client", CACHING), ("by_hooks", HOOKS), ("by_hooks", INJECTION))


def _ratio_row(results: Results, model: str, plan: Plan) -> list[str]:
    sequence, client = results.of(model, "in_sequence", UPSTREAM, plan), results.of(model, "by_client", UPSTREAM, plan)
    cached, hooks, injection = (results.of(model, way, kind, plan) for way, kind in _TREES)
    bounds = results.bounds(model, plan)
    gains = [ratio(sequence, side) for side in (bounds, hooks, injection)]
    shares = [
        ratio(bounds, hooks, "children"),
        ratio(bounds, hooks, "with_join"),
        ratio(bounds, injection, "with_join"),
    ]
    against = [ratio(client, hooks), ratio(cached, hooks), ratio(cached, injection)]
    return [
        plan.label,
        *(f"{gain:.2f}x" for gain in gains),
        *(f"{share:.0%}" for share in shares),
        *(f"{each:.2f}x" for each in against),
    ]


def _join_row(results: Results, model: str, plan: Plan) -> list[str]:
    cached, hooks, injection = (results.of(model, way, kind, plan) for way, kind in _TREES)
    sides, client = (hooks, injection, cached), results.of(model, "by_client", UPSTREAM, plan)
    blocks = [max(each.peak_blocks for each in side) for side in (hooks, client)]
    return [
        plan.label,
        str(plan.num_merged),
        *(str(side[0].joined_tokens) for side in sides),
        *(f"{seconds * 1e3:.0f}" for seconds in (median(side, "join") for side in sides)),
        *map(str, blocks),
        f"{blocks[1] / blocks[0]:.1f}x",
    ]


def _forest_row(results: Results, plan: Plan) -> list[str]:
    sides = [results.of(SMALL.name, way, kind, plan) for way, kind in (_TREES[1], _TREES[2], _TREES[0])]
    rates = [f"{plan.num_sampled / median(side):.0f}" if side else "-" for side in sides]
    outside = [f"{_micros(side, plan):.0f}" if side else "-" for side in sides]
    blocks = [str(max(each.peak_blocks for each in side)) if side else "-" for side in sides]
    gain = f"{ratio(sides[2], sides[0]):.2f}x" if sides[2] else "-"
    least = str(_least_blocks(plan)) if plan.num_requests == 1 else "-"
    return [_forest_label(plan), str(plan.num_sampled), *rates, gain, *outside, blocks[0], least, blocks[2]]


def _micros(side: Sequence[Figures], plan: Plan) -> float:
    return median(side, "outside") / plan.num_sampled * 1e6


def _least_blocks(plan: Plan) -> int:
    """Blocks of one request at the end of its deepest children, if each sequence added only what it doesn't share."""
    length, held, shared = plan.lengths[0], 0, plan.context + plan.lead
    for depth in range(1, plan.depth + 1):
        # A parent has decoded half of its tokens when it forks; the partial block is each child's own.
        own = length if depth == plan.depth else length // 2 + 1
        held += len(plan.lengths) ** depth * (-(-(shared % BLOCK_SIZE + 1 + own) // BLOCK_SIZE))
        shared += 1 + own
    return held + -(-(plan.context + plan.lead) // BLOCK_SIZE)


def _forest_label(plan: Plan) -> str:
    deep = f", depth {plan.depth}" if plan.depth > 1 else ""
    return f"{plan.num_requests} x {len(plan.lengths)}{deep}"


def _is_forest(plan: Plan) -> bool:
    return plan.num_requests > 1 or plan.depth > 1 or len(plan.lengths) > 16
