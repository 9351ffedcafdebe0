# SPDX-License-Identifier: Apache-2.0
"""Hooks against every other way to do the same work: `make bench`, and a subset of it: `make bench-quick`.

Writes benchmarks.md, benchmarks.json and images/ into a folder. For a run that was stopped,
`python -m benchmarks.forkjoin.report FOLDER` writes the page.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bench_pressure.__main__ import bench as bench_pressure
from benchmarks.bench_pressure.workload import make_requests, save_model
from benchmarks.forkjoin.figures import Figures
from benchmarks.forkjoin.measure import measure
from benchmarks.forkjoin.report import write
from benchmarks.forkjoin.results import Machine, Results
from benchmarks.forkjoin.sides import Workshop
from benchmarks.forkjoin.suites import FULL, QUICK, Suite

NUM_REQUESTS_UNDER_PRESSURE = 24


def main() -> None:
    """Measure, write all results, and print the page's path."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a subset, in less than five minutes")
    parser.add_argument("--output", type=Path, default=Path("docs/figures"), help="folder to write into")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    bench(QUICK if args.quick else FULL, "make bench-quick" if args.quick else "make bench", args.output)
    print(args.output / "benchmarks.md")


def bench(suite: Suite, command: str, output: Path) -> None:
    """Measure a suite; figures are saved as they arrive, and the page is written at the end."""
    start, machine = time.perf_counter(), Machine.this()
    figures: list[Figures] = []

    def save(complete: bool, loads: list[dict[str, Any]]) -> Results:
        results = Results(command, complete, time.perf_counter() - start, machine, figures, loads)
        results.save(output / "benchmarks.json")
        return results

    with tempfile.TemporaryDirectory() as folder:
        for each in measure(suite, Workshop(Path(folder))):
            figures.append(each)
            save(complete=False, loads=[])
    write(save(complete=True, loads=under_pressure(suite.pressure_rounds)), output)


def under_pressure(rounds: int) -> list[dict[str, Any]]:
    """Measure load above the KV capacity as `make bench-pressure` does; nothing if ``rounds`` is 0."""
    if not rounds:
        return []
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        loads = bench_pressure(Path(folder), make_requests(NUM_REQUESTS_UNDER_PRESSURE, seed=0), rounds)
    return [load.to_json() for load in loads]


if __name__ == "__main__":
    main()
