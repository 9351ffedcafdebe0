# SPDX-License-Identifier: Apache-2.0
"""The plots: end-to-end speed-up against the number of children, and a step with hooks against one without."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.forkjoin.plans import Plan
from benchmarks.forkjoin.results import Results, ratio, ratios
from benchmarks.forkjoin.sides import AGAIN, CACHING, HOOKS, INJECTION, OFF, UPSTREAM
from benchmarks.forkjoin.tables import quartiles

_LINES = (
    ("hooks, KV injection", "by_hooks", INJECTION, "C0", "o-"),
    ("hooks, conditional prefill", "by_hooks", HOOKS, "C1", "o-"),
    ("client, prefix caching", "by_client", CACHING, "C2", "s-"),
    ("client", "by_client", UPSTREAM, "C3", "s-"),
)
_STEPS = (
    ("hooks off / upstream", OFF, UPSTREAM, "s-"),
    ("hooks on / off", HOOKS, OFF, "o-"),
    ("off, again / off", AGAIN, OFF, "k^--"),
)


def speed_up(results: Results, path: Path) -> None:
    """A panel for each model: the speed-up over the same tokens in sequence."""
    models = [model for model in results.models if results.plans(model, "in_sequence")]
    _draw(results, models, _speed_up_of, "speed-up over decoding in sequence", path)


def steps(results: Results, path: Path) -> None:
    """A panel for each model: ratios of step times without hook tokens, with their quartiles."""
    models = [model for model in results.models if results.plans(model, "batch")]
    _draw(results, models, _steps_of, "step time, ratio", path)


def _draw(
    results: Results, models: Sequence[str], draw: Callable[[Results, str, Axes], None], label: str, path: Path
) -> None:
    """A panel for each model; an empty one if a run had no time for any."""
    columns = max(1, len(models))
    figure, (panels,) = plt.subplots(1, columns, figsize=(5 * columns, 4), squeeze=False, sharey=draw is _steps_of)
    for axes, model in zip(panels, models, strict=False):
        draw(results, model, axes)
    panels[0].set_ylabel(label)
    if models:
        panels[0].legend(frameon=False)
    _write(figure, path)


def _steps_of(results: Results, model: str, axes: Axes) -> None:
    plans = results.plans(model, "batch")
    running = [len(plan.lengths) for plan in plans]
    for index, (name, kind, base, style) in enumerate(_STEPS):
        sides = ((results.of(model, "batch", kind, plan), results.of(model, "batch", base, plan)) for plan in plans)
        found = [quartiles(ratios(*pair, "step")) for pair in sides]
        middle = [each[1] for each in found]
        errors = [[each[1] - each[0] for each in found], [each[2] - each[1] for each in found]]
        axes.errorbar([x * 1.06 ** (index - 1) for x in running], middle, errors, fmt=style, capsize=3, label=name)
    axes.axhline(1, color="grey", linewidth=0.5)
    axes.set(title=model, xlabel="running requests", xscale="log", xticks=running, xticklabels=list(map(str, running)))
    axes.minorticks_off()


def _speed_up_of(results: Results, model: str, axes: Axes) -> None:
    plans = _sweep(results.plans(model, "in_sequence"))
    fan_outs = [len(plan.lengths) for plan in plans]
    sequence = [results.of(model, "in_sequence", UPSTREAM, plan) for plan in plans]
    bounds = [ratio(one, results.bounds(model, plan)) for one, plan in zip(sequence, plans, strict=True)]
    axes.plot(fan_outs, bounds, "k--", label="bound: batched steps alone")
    for name, way, kind, color, style in _LINES:
        pairs = zip(sequence, (results.of(model, way, kind, plan) for plan in plans), strict=True)
        axes.plot(fan_outs, [ratio(one, other) for one, other in pairs], style, color=color, label=name)
    axes.axhline(1, color="grey", linewidth=0.5)
    axes.set(title=f"{model}: context {plans[0].context}, children of {plans[0].lengths[0]} tokens")
    axes.set(xlabel="children", xscale="log", xticks=fan_outs, xticklabels=list(map(str, fan_outs)), ylim=(0, None))
    axes.minorticks_off()


def _sweep(plans: list[Plan]) -> list[Plan]:
    """The largest set of plans that differ only in the number of children, in its order."""
    alike: dict[tuple[int, int], list[Plan]] = {}
    for plan in plans:
        if len(set(plan.lengths)) == 1:
            alike.setdefault((plan.context, plan.lengths[0]), []).append(plan)
    longest = max(alike, key=lambda key: len(alike[key]))
    return sorted(alike[longest], key=lambda plan: len(plan.lengths))


def _write(figure: plt.Figure, path: Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
