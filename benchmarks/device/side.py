# SPDX-License-Identifier: Apache-2.0
"""One side in a process of its own: ``python -m benchmarks.device.side TASK``, which writes a line of JSON a run."""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks.device.plan import SIDES, Cell, Side, hooks
from benchmarks.device.shapes import SHAPES, Shape
from benchmarks.device.ways import WAYS


@dataclass(frozen=True)
class Task:
    """What a side's process is to do, as JSON on its command line."""

    shape: str
    side: str
    folder: str
    cells: tuple[Cell, ...]
    child_tokens: int
    rounds: int
    seconds: float
    arguments: dict[str, Any]

    @classmethod
    def of(cls, text: str) -> "Task":
        """The task that a line of JSON stands for."""
        fields = json.loads(text)
        return cls(**{**fields, "cells": tuple(Cell(**cell) for cell in fields["cells"])})

    @property
    def engine(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """The hooks, None for a stock engine, and the arguments of the engine."""
        side = self.the_side
        arguments = {
            "model": self.folder,
            "load_format": "dummy",
            "dtype": "bfloat16",
            "max_num_seqs": 256,
            "enable_prefix_caching": True,
            **self.arguments,
            **dict(side.arguments),
        }
        return None if side.strategy is None else hooks(side.strategy, self.cells), arguments

    @property
    def the_side(self) -> Side:
        return next(side for side in SIDES if side.name == self.side)

    @property
    def the_shape(self) -> Shape:
        return SHAPES[self.shape]


@dataclass(frozen=True)
class Row:
    """One run of one cell.

    Attributes:
        seconds: To the last token of the last tree.
        steps, tokens: That were computed; 0 where a server did not tell.
        step_seconds, kv_read, kv_once: Of a step in which all children decode: the median time, and bytes of KV if
            each sequence reads its own context, and if what is shared is read once.
        start_seconds: What it took until the engine could be used.
    """

    shape: str
    side: str
    cell: Cell
    seconds: float
    steps: int = 0
    tokens: int = 0
    step_seconds: float = 0.0
    kv_read: float = 0.0
    kv_once: float = 0.0
    start_seconds: float = 0.0
    scheduling: str = ""

    @classmethod
    def of(cls, text: str) -> "Row":
        """The row that a line of JSON stands for."""
        fields = json.loads(text)
        return cls(**{**fields, "cell": Cell(**fields["cell"])})


def main() -> None:
    """Do a task, round by round, until its time is up."""
    started = time.perf_counter()
    # Whatever upstream writes to standard output must not end up between the rows.
    rows = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = Task.of(sys.argv[1])
    measure = _served if task.the_side.is_served else _in_process
    for row in measure(task, started):
        print(json.dumps(asdict(row)), file=rows, flush=True)


def _in_process(task: Task, started: float) -> Iterator[Row]:
    from benchmarks.device.engine import InProcess

    engine = InProcess(*task.engine)
    way, kv_bytes = WAYS[task.the_side.way], task.the_shape.kv_bytes
    scheduling = "asynchronous" if engine.config.scheduler_config.async_scheduling else "synchronous"
    engine.run(partial(way, **_words(task, task.cells[0], 0)), task.cells[0])
    ready = time.perf_counter() - started
    for cell, seed in _turns(task, started):
        seconds, steps = engine.run(partial(way, **_words(task, cell, seed)), cell)
        step_seconds, kv_tokens = steps.decoding(cell)
        yield Row(
            task.shape,
            task.side,
            cell,
            seconds,
            len(steps.all),
            sum(step.num_tokens for step in steps.all),
            step_seconds,
            kv_tokens * kv_bytes,
            steps.kv_once * kv_bytes,
            ready,
            scheduling,
        )


def _served(task: Task, started: float) -> Iterator[Row]:
    from benchmarks.device.served import served

    way = WAYS[task.the_side.way]
    with served(*task.engine) as server:
        server.run(partial(way, **_words(task, task.cells[0], 0)))
        ready = time.perf_counter() - started
        for cell, seed in _turns(task, started):
            seconds = server.run(partial(way, **_words(task, cell, seed)))
            yield Row(task.shape, task.side, cell, seconds, start_seconds=ready)


def _turns(task: Task, started: float) -> Iterator[tuple[Cell, int]]:
    """Cells and their seeds: the first round of all of them, then the next, until the time is up; one cell at least."""
    turns = [(cell, number + 1) for number in range(task.rounds) for cell in task.cells]
    for index, turn in enumerate(turns):
        if index and time.perf_counter() - started > task.seconds:
            return
        yield turn


def _words(task: Task, cell: Cell, seed: int) -> dict[str, Any]:
    shape = task.the_shape
    return {"cell": cell, "child_tokens": task.child_tokens, "vocabulary": shape.vocabulary, "seed": seed}


if __name__ == "__main__":
    main()
