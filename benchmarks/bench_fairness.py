# SPDX-License-Identifier: Apache-2.0
"""What an ordinary request takes beside one that spawns as much as it can: `make bench-fairness`.

The other request asks for 64 samples, and a bias lets each sample a promise at every token. The ordinary request comes
once they fill the engine. It is measured alone, beside that request, and beside the same one with ``hooks: 0``; then
the other one is aborted. Rounds interleave the three. The model is the tiny one. Steps are counted, too,
since they do not depend on the machine. The target: at most 4 times what it takes beside the same load without hooks.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
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
"""Steps of the other request before the ordinary one comes."""

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
    """What the ordinary request took, from its arrival to its end."""

    seconds: float
    steps: int


class Bench:
    """One engine, on which requests come and go."""

    def __init__(self, load: Load) -> None:
        hooks = {"mode": "promise", **load.hooks}
        self._hooks = hooks_for(**hooks)
        self._engine: Any = open_engine(self._hooks, max_model_len=MAX_MODEL_LEN, **load.engine).llm_engine
        self._number = 0

    def take(self, beside: str) -> Taken:
        """Serve an ordinary request, and leave nothing behind."""
        self._number += 1
        other, ordinary = f"other-{self._number}", f"ordinary-{self._number}"
        if beside != ALONE:
            self._engine.add_request(other, f"call {self._number} stone", self._bomb(beside == HOOKED))
            for _ in range(NUM_WARM_UP):
                self._engine.step()
        params = SamplingParams(temperature=0.0, max_tokens=NUM_ORDINARY, ignore_eos=True, extra_args={"hooks": False})
        start = time.perf_counter()
        self._engine.add_request(ordinary, f"call 1 apple {self._number} river", params)
        steps = self._steps_until_end(ordinary)
        taken = Taken(time.perf_counter() - start, steps)
        self._engine.abort_request([other])
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return taken

    def _steps_until_end(self, request_id: str) -> int:
        steps = 0
        while self._engine.has_unfinished_requests():
            steps += 1
            if any(each.request_id == request_id and each.finished for each in self._engine.step()):
                return steps
        raise RuntimeError(f"{request_id} did not end")

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


def measure(load: Load, repeats: int) -> Iterator[tuple[str, list[Taken]]]:
    """What the ordinary request took in each place, in rounds."""
    bench = Bench(load)
    bench.take(ALONE)
    places = ALONE, HOOKED, UNHOOKED
    rounds = [{place: bench.take(place) for place in places} for _ in range(repeats)]
    return ((place, [each[place] for each in rounds]) for place in places)


def line(load: str, taken: dict[str, list[Taken]]) -> str:
    """The medians of one load, and whether the target is met."""
    seconds = {place: statistics.median(each.seconds for each in rounds) for place, rounds in taken.items()}
    steps = {place: statistics.median(each.steps for each in rounds) for place, rounds in taken.items()}
    ratio = seconds[HOOKED] / seconds[UNHOOKED]
    told = " ".join(f"{seconds[place]:>8.2f} s {steps[place]:>4.0f}" for place in (ALONE, UNHOOKED, HOOKED))
    return f"{load:<22} {told} {ratio:>6.2f} {'met' if ratio <= TARGET else 'missed'}"


def main() -> None:
    """Print a line for each load as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=positive, default=3, help="rounds for each load")
    parser.add_argument("--loads", type=positive, default=len(LOADS), help="measure only the first so many loads")
    options = parser.parse_args()
    print(f"{MODEL_FOLDER.name} on vLLM {vllm.__version__}: medians of {options.repeats}, seconds and steps")
    print(f"target: at most {TARGET:g} times as long beside hooks as beside hooks: 0")
    print(f"{'load':<22} {ALONE:>15} {UNHOOKED:>15} {HOOKED:>15} {'ratio':>6}")
    for load in LOADS[: options.loads]:
        print(line(load.name, dict(measure(load, options.repeats))), flush=True)


if __name__ == "__main__":
    main()
