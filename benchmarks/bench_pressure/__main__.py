# SPDX-License-Identifier: Apache-2.0
"""Offered load above the KV capacity, by `blocked_kv_policy`, and with hooks off: `make bench-pressure`.

All requests arrive at once, and what they sample is scripted, so that every side samples equally many tokens;
with hooks off, a request samples them in one sequence. At a load of 1x the KV cache holds as many blocks as "auto"
uses at its peak if they are plentiful; at 2x it holds half of them. "recomputed" is the number of tokens that a
side schedules beyond those that it schedules if KV is plentiful. Each round interleaves the sides.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

# The engine reads these when it is imported.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_USE_V1", "0")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from rich.console import Console
from tqdm import tqdm

from benchmarks.bench_pressure.report import Load, show
from benchmarks.bench_pressure.sides import BLOCK_SIZE, SIDES, Measured, Side
from benchmarks.bench_pressure.workload import MAX_MODEL_LEN, Request, make_requests, save_model
from benchmarks.counts import positive

FACTORS = (1.0, 1.5, 2.0)
WIDTH = 96


def measure(factor: float, sides: Sequence[Side], repeats: int, progress: tqdm) -> dict[str, list[Measured]]:
    """The runs of all sides, interleaved."""
    runs: dict[str, list[Measured]] = {side.name: [] for side in sides}
    for _ in range(repeats):
        for side in sides:
            progress.set_description(f"{factor:g}x, {side.name}")
            runs[side.name].append(side.run())
            progress.update()
    return runs


def bench(folder: Path, requests: Sequence[Request], repeats: int) -> list[Load]:
    """Measure every side at every load."""
    with tqdm(total=len(SIDES) * (1 + repeats * len(FACTORS)), leave=False) as progress:
        # No request of any side has more than MAX_MODEL_LEN tokens.
        plenty = len(requests) * MAX_MODEL_LEN // BLOCK_SIZE
        plentiful = [measure(0, [Side(name, folder, requests, plenty)], 1, progress) for name in SIDES]
        scheduled = {name: run.scheduled for runs in plentiful for name, (run,) in runs.items()}
        (peak,) = (runs["auto"][0].peak_blocks for runs in plentiful if "auto" in runs)
        loads = []
        for factor in FACTORS:
            num_blocks = max(round(peak / factor), MAX_MODEL_LEN // BLOCK_SIZE)
            sides = [Side(name, folder, requests, num_blocks) for name in SIDES]
            loads.append(Load(factor, num_blocks, measure(factor, sides, repeats, progress), scheduled))
    return loads


def main() -> None:
    """Print a table for each load."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=positive, default=3, help="rounds for each load")
    parser.add_argument("--requests", type=positive, default=24, help="all offered at once")
    parser.add_argument("--seed", type=int, default=0, help="of the workload")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all runs there too")
    args = parser.parse_args()
    requests, console = make_requests(args.requests, args.seed), Console(width=WIDTH)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        loads = bench(Path(folder), requests, args.repeats)
    num_sampled = sum(len(request.sampled) for request in requests)
    console.print(
        f"{args.requests} requests, {sum(len(request.children) for request in requests)} children, {num_sampled} "
        f"sampled tokens; {torch.get_num_threads()} threads; median of {args.repeats}\n"
    )
    for load in loads:
        show(load, console)
    if args.json:
        args.json.write_text(json.dumps({**vars(args), "json": None, "loads": [load.to_json() for load in loads]}))


if __name__ == "__main__":
    main()
