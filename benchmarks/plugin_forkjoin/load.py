# SPDX-License-Identifier: Apache-2.0
"""Trees that together need as much KV as there is, half as much again, and twice as much."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.forkjoin.engine import Run
from benchmarks.forkjoin.models import SMALL
from benchmarks.forkjoin.plans import Plan
from benchmarks.forkjoin.sides import PLUGIN_HOOKS, Kind, Workshop
from benchmarks.forkjoin.tables import markdown
from benchmarks.plugin_forkjoin.contestants import CLIENT, HOOKED, INJECTING

PLAN = Plan(512, (64,) * 4, num_requests=16)
LOADS = (1.0, 1.5, 2.0)
SIDES = (HOOKED, INJECTING, CLIENT)
MODEL_LEN = 1024


@dataclass(frozen=True)
class Loaded:
    """One run of one side with too little KV, or just enough."""

    load: float
    side: str
    num_blocks: int
    tokens_per_second: float


def measure_load(workshop: Workshop) -> Iterator[Loaded]:
    """Measure all sides, for each load side by side in new processes."""
    needed = _run(workshop, PLUGIN_HOOKS, HOOKED.way).peak_blocks
    for load in LOADS:
        num_blocks = round(needed / load)
        for side in SIDES:
            # Upstream keeps one block that no request can have.
            limits = {"num_gpu_blocks_override": num_blocks + 1, "max_model_len": MODEL_LEN}
            kind = Kind(f"{side.name}, load {load}", side.kind.environment, {**side.kind.arguments, **limits})
            run = _run(workshop, kind, side.way)
            yield Loaded(load, side.name, num_blocks, PLAN.num_sampled / run.seconds)


def load_table(loaded: list[Loaded]) -> str:
    """Tokens that all trees sample a second, by load."""
    rows = []
    for load in LOADS:
        found = {each.side: each for each in loaded if each.load == load}
        speeds = [f"{found[side.name].tokens_per_second:.0f}" for side in SIDES]
        rows.append([f"{load:g}x", str(found[HOOKED.name].num_blocks), *speeds])
    return markdown(["load", "blocks of 32", *(f"{side.name}, tokens/s" for side in SIDES)], rows)


def _run(workshop: Workshop, kind: Kind, way: str) -> Run:
    with workshop.open(SMALL, kind) as sides:
        side = sides[kind]
        side.run(way, Plan(64, (8,) * 2), seed=0)
        return side.run(way, PLAN, seed=1)
