# SPDX-License-Identifier: Apache-2.0
"""What the plug-in costs while no hook token is sampled: `make bench-plugin-overhead`.

Each round starts new processes, of stock vLLM without hooks, with hooks, and without again. They take turns of a few
steps, so that other work on the machine disturbs all of them alike, and times are those of the processor. Ratios are of
medians in a round; the median of the rounds is printed, with the least and the greatest. The function calls in a step
do not depend on the machine.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.counts import positive
from benchmarks.forkjoin.models import LARGE, SMALL, Model
from benchmarks.plugin_overhead.sides import AGAIN, OFF, ON, SIDES, Side, opened

NUM_REQUESTS = (1, 16, 64)
NUM_TURNS = 10
NUM_COUNTED = 4
"""Steps whose function calls are counted."""

TINY = Path(__file__).parents[2] / "examples" / "forkjoin-tiny"


@dataclass(frozen=True)
class Subject:
    """A model, and how many of its steps a turn has."""

    name: str
    dtype: str
    model: Model | None
    steps: int

    def arguments(self, folder: Path) -> dict[str, Any]:
        """The arguments of an engine, for which the model is made in ``folder``."""
        path = TINY if self.model is None else folder / self.model.name
        if self.model is not None and not path.exists():
            self.model.save(folder)
        return {
            "model": str(path),
            "dtype": self.dtype,
            "max_model_len": 512,
            "max_num_seqs": max(NUM_REQUESTS),
            "block_size": 32,
            "num_gpu_blocks_override": 20 * max(NUM_REQUESTS),
            "gpu_memory_utilization": 0.1,
        }


SUBJECTS = (
    Subject("forkjoin-tiny", "float32", None, 40),
    Subject(SMALL.name, SMALL.dtype, SMALL, 20),
    Subject(LARGE.name, LARGE.dtype, LARGE, 4),
)


@dataclass
class Row:
    """The figures of one model with so many requests."""

    milliseconds: list[float] = field(default_factory=list)
    """The median step without hooks, for each round."""

    on: list[float] = field(default_factory=list)
    """Ratios to it, for each round."""

    again: list[float] = field(default_factory=list)
    calls: dict[str, float] = field(default_factory=dict)


def main() -> None:
    """Measure, and print a table for each model as soon as it is complete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=positive, default=6)
    parser.add_argument("--models", type=positive, default=len(SUBJECTS), help="measure only the first so many models")
    options = parser.parse_args()
    print(
        f"{'model':<14} {'requests':>8} {'step, ms':>9} {'on/off':>24} {'off/off':>24} {'calls a step, off + on':>23}"
    )
    with tempfile.TemporaryDirectory() as name:
        for subject in SUBJECTS[: options.models]:
            measure(subject, Path(name), options.rounds)


def measure(subject: Subject, folder: Path, rounds: int) -> None:
    """Print a line for each number of requests."""
    arguments = subject.arguments(folder)
    hooks = unsampled(subject, arguments, folder)
    rows = {number: Row() for number in NUM_REQUESTS}
    for round_number in range(rounds):
        order = [SIDES[(round_number + place) % len(SIDES)] for place in range(len(SIDES))]
        with opened(folder, arguments, {name: hooks if name == ON else None for name in order}) as sides:
            for number, row in rows.items():
                _round(sides, number, subject.steps, row)
    for number, row in rows.items():
        more = row.calls[ON] - row.calls[OFF]
        calls = f"{row.calls[OFF]:.0f} + {more:.0f}"
        step = statistics.median(row.milliseconds)
        print(
            f"{subject.name:<14} {number:>8} {step:>9.2f} {_told(row.on):>24} {_told(row.again):>24} {calls:>23}",
            flush=True,
        )


def unsampled(subject: Subject, arguments: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Hooks at two tokens that the requests do not sample."""
    sampled: set[int] = set()
    with opened(folder, arguments, {OFF: None}) as sides:
        for number in NUM_REQUESTS:
            sides[OFF].do("begin", number)
            sides[OFF].do("time", NUM_TURNS * subject.steps + NUM_COUNTED)
            sampled |= set(sides[OFF].do("end", number))
    promise, sync = (token_id for token_id, _ in zip(_not_in(sampled), range(2), strict=False))
    return {"promise_token_id": promise, "sync_token_id": sync, "block_on": "sync"}


def _round(sides: dict[str, Side], num_requests: int, num_steps: int, row: Row) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side.do("begin", num_requests)
    for _ in range(NUM_TURNS):
        for name, side in sides.items():
            seconds[name] += side.do("time", num_steps)
    row.calls = {name: side.do("calls", NUM_COUNTED) for name, side in sides.items()}
    for side in sides.values():
        side.do("end", num_requests)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    row.milliseconds.append(1000 * medians[OFF])
    row.on.append(medians[ON] / medians[OFF])
    row.again.append(medians[AGAIN] / medians[OFF])


def _not_in(token_ids: set[int]) -> Iterator[int]:
    return (token_id for token_id in range(max(token_ids) + 3) if token_id not in token_ids)


def _told(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


if __name__ == "__main__":
    main()
