# SPDX-License-Identifier: Apache-2.0
"""The page of a run: seconds, steps and ratios of each cell, and what a step reads."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from benchmarks.device.bandwidth import Device
from benchmarks.device.plan import CLIENT, HOOKS, HTTP_CLIENT, HTTP_HOOKS, INJECTING, SEQUENCE, SIDES, Cell
from benchmarks.device.shapes import SHAPES
from benchmarks.device.side import Row
from benchmarks.device.tables import markdown

Rows = Sequence[Row]
_PAIRS = (
    (CLIENT.name, HOOKS.name),
    (CLIENT.name, INJECTING.name),
    (SEQUENCE.name, HOOKS.name),
    (HTTP_CLIENT.name, HTTP_HOOKS.name),
)


def write_page(rows: Rows, failures: Mapping[str, str], child_tokens: int, device: Device, contexts: str) -> str:
    """The page, in Markdown; ``contexts`` are the tables of `benchmarks.device.contexts`."""
    parts = [
        "# Trees on a device",
        f"{device.name}; {device.software}; a copy within memory moves {device.bandwidth / 1e9:.0f} GB/s. Weights are "
        f"dummies of real shapes in bfloat16; prompts, forks and joins are scripted; a child samples {child_tokens} "
        "tokens. Medians of all runs of a cell.",
    ]
    for shape in dict.fromkeys(row.shape for row in rows):
        own = [row for row in rows if row.shape == shape]
        parts += [f"## {shape}", _seconds(own), _counts(own), _ratios(own, child_tokens), _steps(own, device)]
    if failures:
        parts += ["## Not measured", *(f"- {name}: {why}" for name, why in failures.items())]
    parts += ["## Contexts read once", contexts]
    return "\n\n".join(parts) + "\n"


def _seconds(rows: Rows) -> str:
    return "Seconds to the last token of the last tree:\n\n" + _by_side(rows, "seconds", "{:.3f}")


def _counts(rows: Rows) -> str:
    return "Steps of the model, where they could be counted:\n\n" + _by_side(rows, "steps", "{:.0f}")


def _by_side(rows: Rows, field: str, form: str) -> str:
    """A row for each cell, and a column for each side that has this figure."""
    names = [side.name for side in SIDES if any(row.side == side.name and getattr(row, field) for row in rows)]
    table = [
        [_label(cell), *(form.format(found) if (found := _median(rows, cell, name, field)) else "" for name in names)]
        for cell in _cells(rows)
    ]
    return markdown(["context, children, trees", *names], table)


def _ratios(rows: Rows, child_tokens: int) -> str:
    """Of two sides, with the bound: what it would be if fork, join and prompts took no time."""
    table = []
    for cell in _cells(rows):
        for slow, fast in _PAIRS:
            times = _median(rows, cell, slow), _median(rows, cell, fast)
            if not all(times):
                continue
            step = _median(rows, cell, fast, "step_seconds") or _median(rows, cell, HOOKS.name, "step_seconds")
            bound = f"{times[0] / (cell.path(child_tokens) * step):.2f}" if step else ""
            table.append([_label(cell), f"{slow} / {fast}", f"{times[0] / times[1]:.2f}", bound])
    title = (
        "Times as fast; the bound is that of a side which only decodes, one step for each token of the longest path:"
    )
    return f"{title}\n\n" + markdown(["context, children, trees", "sides", "ratio", "bound"], table)


def _steps(rows: Rows, device: Device) -> str:
    """What a step takes and reads in which all children decode."""
    table = []
    for cell in _cells(rows):
        for name in (CLIENT.name, HOOKS.name, INJECTING.name):
            step = _median(rows, cell, name, "step_seconds")
            if not step:
                continue
            own = next(row for row in rows if row.cell == cell and row.side == name)
            read, once = _median(rows, cell, name, "kv_read"), _median(rows, cell, name, "kv_once")
            weights = SHAPES[own.shape].weight_bytes
            share = (read + weights) / step / device.bandwidth
            gain = (read + weights) / (once + weights)
            sizes = [f"{each / 1e9:.3f}" for each in (weights, read, once)]
            counts = [str(round(_median(rows, cell, name, field))) for field in ("steps", "tokens")]
            table.append(
                [
                    _label(cell),
                    name,
                    own.scheduling,
                    *counts,
                    f"{step * 1e3:.2f}",
                    *sizes,
                    f"{share:.0%}",
                    f"{gain:.2f}",
                ]
            )
    headers = [
        "context, children, trees",
        "side",
        "scheduling",
        "steps",
        "tokens",
        "ms a step",
        "weights, GB",
        "KV read, GB",
    ]
    headers += ["read once, GB", "of bandwidth", "gain by bytes"]
    return "A step in which all children decode, and nothing else:\n\n" + markdown(headers, table)


def _cells(rows: Rows) -> Iterator[Cell]:
    yield from dict.fromkeys(row.cell for row in rows)


def _median(rows: Rows, cell: Cell, side: str, field: str = "seconds") -> float:
    found = [getattr(row, field) for row in rows if row.cell == cell and row.side == side]
    return float(median(found)) if found else 0.0


def _label(cell: Cell) -> str:
    return f"{cell.context}, {cell.children}, {cell.trees}"
