# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/benchmarks.md."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from tabulate import tabulate

from benchmarks.forkjoin.engine import BLOCK_SIZE
from benchmarks.forkjoin.figures import Figures
from benchmarks.forkjoin.models import SMALL
from benchmarks.forkjoin.plans import Plan
from benchmarks.forkjoin.results import Results, median, ratio, ratios, spread
from benchmarks.forkjoin.sides import CACHING, HOOKS, INJECTION, OFF, UPSTREAM


def markdown(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    align = ("left", *("right",) * (len(headers) - 1))
    return tabulate(list(rows), headers=headers, tablefmt="pipe", colalign=align, disable_numparse=True)


def end_to_end(results: Results, model: str) -> str:
    """Seconds of each way, whole requests."""
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
    rows = []
    for plan in sorted(results.plans(model, "in_sequence"), key=lambda plan: (plan.context, len(plan.lengths))):
        found = results.of(model, "by_hooks", HOOKS, plan)
        fork, prefill = (median(found, value) for value in (lambda each: each.fork, lambda each: each.prefill))
        per_child = fork / len(plan.lengths)
        rows.append([plan.label, f"{fork * 1e3:.1f}", f"{per_child * 1e3:.2f}", f"{prefill * 1e3:.0f}"])
        rows[-1].append(f"{statistics.median(each.fork / each.prefill for each in found):.2%}")
    return markdown(["context, children", "fork, ms", "per child", "prefill, ms", "fork / prefill"], rows)


def steps(results: Results, model: str) -> str:
    """A step of plain requests, with hooks and without."""
    headers = ["running", "upstream, ms", "hooks off / upstream", "hooks on / off", "outside the model, ms: off", "on"]
    rows = []
    for plan in results.plans(model, "batch"):
        upstream, off, on = (results.of(model, "batch", kind, plan) for kind in (UPSTREAM, OFF, HOOKS))
        outside = [f"{median(side, lambda each: each.outside) * 1e3:.2f}" for side in (off, on)]
        step = f"{median(upstream, _step) * 1e3:.2f}"
        pairs = [with_quartiles(ratios(*sides, _step)) for sides in ((off, upstream), (on, off))]
        rows.append([str(len(plan.lengths)), step, *pairs, *outside])
    return markdown(headers, rows)


def forests(results: Results) -> str:
    """Many requests at once: each sampled token's time, and what of it is the engine's."""
    headers = ["requests x children", "tokens", "hooks, tokens/s", "injection", "client, caching", "hooks / client"]
    headers += ["outside the model, µs a token: hooks", "injection", "client", "peak blocks: hooks", "least", "client"]
    plans = [plan for plan in results.plans(SMALL.name, "by_hooks") if results.of(SMALL.name, "by_hooks", HOOKS, plan)]
    return markdown(headers, (_forest_row(results, plan) for plan in plans if _is_forest(plan)))


def throughput(runs: Sequence[dict[str, Any]]) -> float:
    """Of runs of `benchmarks.bench_pressure`, in sampled tokens a second."""
    return statistics.median(run["sampled"] / run["seconds"] for run in runs)


def with_quartiles(values: Sequence[float]) -> str:
    """Median, and between which values half of them are."""
    if len(values) < 2:
        return f"{values[0]:.3f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3f} ({low:.3f}-{high:.3f})"


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
    shares = [ratio(bounds, hooks, _children), ratio(bounds, hooks, _with_join), ratio(bounds, injection, _with_join)]
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
        *(f"{median(side, lambda each: each.join) * 1e3:.0f}" for side in sides),
        *map(str, blocks),
        f"{blocks[1] / blocks[0]:.1f}x",
    ]


def _forest_row(results: Results, plan: Plan) -> list[str]:
    sides = [results.of(SMALL.name, way, kind, plan) for way, kind in (_TREES[1], _TREES[2], _TREES[0])]
    rates = [f"{plan.num_sampled / median(side):.0f}" if side else "-" for side in sides]
    outside = [f"{median(side, _outside) / plan.num_sampled * 1e6:.0f}" if side else "-" for side in sides]
    blocks = [str(max(each.peak_blocks for each in side)) if side else "-" for side in sides]
    gain = f"{ratio(sides[2], sides[0]):.2f}x" if sides[2] else "-"
    least = str(_least_blocks(plan)) if plan.num_requests == 1 else "-"
    return [_forest_label(plan), str(plan.num_sampled), *rates, gain, *outside, blocks[0], least, blocks[2]]


def _least_blocks(plan: Plan) -> int:
    """Of one request, at the end of its deepest children, if each sequence had what it shares with nobody alone."""
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


def _step(figures: Figures) -> float:
    return figures.step


def _children(figures: Figures) -> float:
    return figures.children


def _with_join(figures: Figures) -> float:
    return figures.children + figures.join


def _outside(figures: Figures) -> float:
    return figures.outside
