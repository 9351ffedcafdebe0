# SPDX-License-Identifier: Apache-2.0
"""Hooks on a stock vLLM against a client, decoding in sequence, and the fork: `make bench-plugin`, `-quick` for less.

Writes ``benchmarks.md`` and ``outcomes.jsonl`` into a folder.
"""

import argparse
import tempfile
import time
from pathlib import Path

import cpuinfo

from benchmarks.forkjoin.sides import PLUGIN, Workshop
from benchmarks.plugin_forkjoin.measure import FULL, KINDS, QUICK, measure
from benchmarks.plugin_forkjoin.outcomes import Outcomes
from benchmarks.plugin_forkjoin.page import write_page


def main() -> None:
    """Measure, write the page, and print its path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a subset, in less than five minutes")
    parser.add_argument("--output", type=Path, default=Path("build/bench-plugin"), help="folder to write into")
    parser.add_argument("--plugin", type=Path, default=PLUGIN, help="the interpreter of the plug-in's environment")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder), KINDS, arguments.plugin)
        outcomes = Outcomes(list(measure(QUICK if arguments.quick else FULL, workshop)))
    outcomes.save(arguments.output / "outcomes.jsonl")
    command = "make bench-plugin-quick" if arguments.quick else "make bench-plugin"
    device = cpuinfo.get_cpu_info()["brand_raw"]
    page = arguments.output / "benchmarks.md"
    page.write_text(write_page(outcomes, command, time.perf_counter() - start, device))
    print(page)


if __name__ == "__main__":
    main()
