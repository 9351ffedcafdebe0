# SPDX-License-Identifier: Apache-2.0
"""The figures of a load, as a table and as JSON."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.bench_pressure.sides import FIXED, OFF, Measured

COLUMNS = ["tokens/s", "spread", "CPU s", "recomputed", "peak blocks", "preemptions", "evictions", "steps"]


@dataclass
class Load:
    """All runs at one offered load, by side, in the order of the rounds."""

    factor: float
    num_blocks: int
    runs: Mapping[str, list[Measured]]
    scheduled_with_plenty: Mapping[str, int]
    """Tokens that a side schedules if KV is plentiful."""

    def throughput(self, side: str) -> float:
        """The median, in sampled tokens per second."""
        return statistics.median(run.throughput for run in self.runs[side])

    def recomputed(self, side: str) -> int:
        """The median of the recomputed tokens."""
        scheduled = statistics.median(run.scheduled for run in self.runs[side])
        return round(scheduled) - self.scheduled_with_plenty[side]

    def ratio(self, side: str, other: str, figure: str = "throughput") -> float:
        """A figure of ``side`` relative to that of ``other``: the median of the rounds' ratios, as rounds differ."""
        pairs = zip(self.runs[side], self.runs[other], strict=True)
        return statistics.median(getattr(one, figure) / getattr(two, figure) for one, two in pairs)

    @property
    def best_fixed(self) -> str:
        """The policy, other than "auto", with the highest throughput."""
        return max(FIXED, key=self.throughput)

    def to_json(self) -> dict[str, Any]:
        """All runs, and the ratios."""
        return {
            "load": self.factor,
            "num_blocks": self.num_blocks,
            "auto_to_best_fixed": self.ratio("auto", self.best_fixed),
            "auto_to_hooks_off": self.ratio("auto", OFF),
            "recomputed": {side: self.recomputed(side) for side in self.runs},
            "runs": {side: [asdict(run) for run in runs] for side, runs in self.runs.items()},
        }


def show(load: Load, console: Console) -> None:
    """Print a table, and the ratios below it."""
    title = f"{load.factor:g}x the KV capacity of {load.num_blocks} blocks"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for side in load.runs:
        table.add_row(side, *_row(load, side))
    console.print(table)
    for name, side in [(f"best fixed policy ({load.best_fixed})", load.best_fixed), ("hooks off", OFF)]:
        by_cpu = load.ratio("auto", side, "cpu_throughput")
        console.print(f"auto / {name}: {load.ratio('auto', side):.2f}; by CPU time {by_cpu:.2f}")
    console.print()


def _row(load: Load, side: str) -> list[str]:
    runs = load.runs[side]
    return [
        f"{load.throughput(side):.0f}",
        f"{_spread([run.throughput for run in runs]):.0%}",
        f"{statistics.median(run.cpu_seconds for run in runs):.1f}",
        *(f"{value:.0f}" for value in [load.recomputed(side), max(run.peak_blocks for run in runs)]),
        *(f"{statistics.median(values):g}" for values in _counts(runs)),
    ]


def _counts(runs: Sequence[Measured]) -> list[list[int]]:
    names = ("preemptions", "evictions", "steps")
    return [[getattr(run, name) for run in runs] for name in names]


def _spread(values: Sequence[float]) -> float:
    """The range of the values, relative to their median."""
    return (max(values) - min(values)) / statistics.median(values)
