# SPDX-License-Identifier: Apache-2.0
"""Hooks on a stock vLLM against a client, decoding in sequence, and the fork: `make bench-plugin`, `-quick` for less.

Writes ``benchmarks.md`` and ``outcomes.jsonl`` into a folder.
"""

import argparse
import os
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import cpuinfo

from benchmarks.forkjoin.sides import PLUGIN, Workshop
from benchmarks.plugin_forkjoin.contestants import CONTESTANTS, WITHOUT_FORK
from benchmarks.plugin_forkjoin.load import measure_load
from benchmarks.plugin_forkjoin.measure import FULL, QUICK, measure
from benchmarks.plugin_forkjoin.outcomes import Outcomes
from benchmarks.plugin_forkjoin.page import write_page


def main() -> None:
    """Measure, write the page, and print its path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a subset, in less than five minutes")
    parser.add_argument("--rounds", type=int, help="how often each plan is measured")
    parser.add_argument("--output", type=Path, default=Path("build/bench-plugin"), help="folder to write into")
    parser.add_argument("--plugin", type=Path, default=PLUGIN, help="the interpreter of the plug-in's environment")
    parser.add_argument(
        "--without-fork", action="store_true", help="leave the fork of 0.9.2 out, where it cannot be built"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    suite = QUICK if arguments.quick else FULL
    suite = replace(suite, rounds=arguments.rounds or suite.rounds)
    contestants = WITHOUT_FORK if arguments.without_fork else CONTESTANTS
    kinds = tuple(dict.fromkeys(each.kind for each in contestants))
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder), kinds, arguments.plugin)
        outcomes = Outcomes.saved(measure(suite, workshop, contestants), arguments.output / "outcomes.jsonl")
        loaded = [] if arguments.quick else list(measure_load(workshop))
    command = "make bench-plugin-quick" if arguments.quick else "make bench-plugin"
    page = arguments.output / "benchmarks.md"
    seconds = time.perf_counter() - start
    page.write_text(write_page(outcomes, loaded, command, seconds, device_of(arguments.plugin)))
    print(page)


def device_of(interpreter: Path) -> str:
    """The name of the device that the vLLM of an environment computes on."""
    ask = "from vllm.platforms import current_platform as here; print(here.is_cpu() or here.get_device_name())"
    told = subprocess.run([interpreter, "-c", ask], capture_output=True, text=True, check=True, env=os.environ)
    name = told.stdout.strip().splitlines()[-1]
    cpu: str = cpuinfo.get_cpu_info()["brand_raw"]
    return f"{os.cpu_count()} x {cpu}" if name == "True" else f"{name}, beside {cpu}"


if __name__ == "__main__":
    main()
