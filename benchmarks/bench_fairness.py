# SPDX-License-Identifier: Apache-2.0
"""What ordinary requests take beside one that spawns as much as it can: `make bench-fairness`.

The other request asks for 64 samples, and a bias lets each sample a promise at every token. Ordinary requests come
through all of this attack, one every so many steps. One is measured alone, and as many beside the same load with
``hooks: 0``; rounds interleave the three. The model is the tiny one. Steps are counted, too, since they do not depend
on the machine. The target: a median of at most 4 times what they take beside the same load without hooks.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

# The engine reads it when it is imported: core and front end in one process, whose steps can be counted.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from forkjoin_engine import MODEL_FOLDER, SamplingParams, hooks_for, open_engine

import vllm
from benchmarks.counts import positive

TARGET = 4.0
NUM_SAMPLES = 64
NUM_WARM_UP = 60
"""Steps of the other request before the first ordinary one comes."""

PAUSE = 40
"""Steps between two ordinary requests."""

MOST_STEPS = 1000
"""If the other request has not ended by then, it is aborted; those that still wait for it are served."""

NUM_ORDINARY = 32
"""Tokens of the ordinary request."""

MAX_MODEL_LEN = 512
ALONE, HOOKED, UNHOOKED = "alone", "beside hooks", "beside hooks: 0"


@dataclass(frozen=True)
class Load:
    """Hooks, and an engine."""

    name: str
    hooks: dict[str, Any]
    engine: dict[str, Any]


LOADS = (
    Load("defaults", {}, {}),
    Load("block_on='sync'", {"mode": "sync"}, {}),
    Load("depth 3, small pool", {"mode": "sync", "max_child_depth": 3}, {"num_gpu_blocks_override": 128}),
)


@dataclass(frozen=True)
class Taken:
    """What one ordinary request took, from its arrival to its end."""

    seconds: float
    steps: int


class Bench:
    """One engine, on which requests come and go."""

    def __init__(self, load: Load) -> None:
        hooks = {"mode": "promise", **load.hooks}
        self._hooks = hooks_for(**hooks)
        self._engine: Any = open_engine(self._hooks, max_model_len=MAX_MODEL_LEN, **load.engine).llm_engine
        self._number = 0

    def take(self, beside: str) -> list[Taken]:
        """Serve ordinary requests while the other one lasts, or one alone, and leave nothing behind."""
        self._number += 1
        other, arrivals = f"other-{self._number}", range(1)
        if beside != ALONE:
            self._engine.add_request(other, f"call {self._number} stone", self._bomb(beside == HOOKED))
            arrivals = range(NUM_WARM_UP, MOST_STEPS, PAUSE)
        return list(self._serve(arrivals, other))

    def _serve(self, arrivals: Container[int], other: str) -> Iterator[Taken]:
        arrived: dict[str, tuple[float, int]] = {}
        for step in count():
            if step == MOST_STEPS:
                self._engine.abort_request([other])
            if step and not self._engine.has_unfinished_requests():
                return
            if step in arrivals:
                arrived[self._add_ordinary(step)] = time.perf_counter(), step
            for each in self._engine.step():
                if each.finished and each.request_id in arrived:
                    start, first = arrived.pop(each.request_id)
                    yield Taken(time.perf_counter() - start, step + 1 - first)

    def _add_ordinary(self, step: int) -> str:
        name = f"ordinary-{self._number}-{step}"
        params = SamplingParams(temperature=0.0, max_tokens=NUM_ORDINARY, ignore_eos=True, extra_args={"hooks": False})
        self._engine.add_request(name, f"call 1 apple {self._number} river", params)
        return name

    def _bomb(self, has_hooks: bool) -> SamplingParams:
        return SamplingParams(
            n=NUM_SAMPLES,
            temperature=1.0,
            seed=self._number,
            max_tokens=MAX_MODEL_LEN,
            ignore_eos=True,
            logit_bias={self._hooks.promise_token_id: 5.0},
            extra_args={"hooks": has_hooks},
        )


def measure(load: Load, repeats: int) -> dict[str, list[Taken]]:
    """What the ordinary requests took in each place, in rounds."""
    bench = Bench(load)
    bench.take(ALONE)
    taken: dict[str, list[Taken]] = {ALONE: [], UNHOOKED: [], HOOKED: []}
    for _ in range(repeats):
        for place, requests in taken.items():
            requests += bench.take(place)
    return taken


def lines(load: str, taken: dict[str, list[Taken]]) -> Iterator[str]:
    """A line for each place: how many requests, median and worst; and whether the target is met."""
    for place, requests in taken.items():
        seconds, steps = [each.seconds for each in requests], [each.steps for each in requests]
        told = f"{len(requests):>8} {statistics.median(seconds):>7.2f} {max(seconds):>6.2f}"
        yield f"{load:<20} {place:<16} {told} {statistics.median(steps):>7.0f} {max(steps):>6}"
    hooked, unhooked = (statistics.median(each.seconds for each in taken[place]) for place in (HOOKED, UNHOOKED))
    yield f"{load:<20} ratio of medians {hooked / unhooked:.2f}: {'met' if hooked <= TARGET * unhooked else 'missed'}"


def main() -> None:
    """Print a line for each load as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=positive, default=3, help="rounds for each load")
    parser.add_argument("--loads", type=positive, default=len(LOADS), help="measure only the first so many loads")
    options = parser.parse_args()
    print(f"{MODEL_FOLDER.name} on vLLM {vllm.__version__}: {options.repeats} rounds")
    print(f"target: at most {TARGET:g} times as long beside hooks as beside hooks: 0")
    print(f"{'load':<20} {'place':<16} {'requests':>8} {'seconds':>7} {'worst':>6} {'steps':>7} {'worst':>6}")
    for load in LOADS[: options.loads]:
        print(*lines(load.name, measure(load, options.repeats)), sep="\n", flush=True)


if __name__ == "__main__":
    main()
