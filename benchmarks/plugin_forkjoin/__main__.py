# SPDX-License-Identifier: Apache-2.0
"""Hooks on a stock vLLM against a client, decoding in sequence, and the fork: `make bench-plugin`, `-quick` for less.

Plans of one's own are measured with the 137M model: `--plan 2048,8,128 --rounds 5`.
Writes ``benchmarks.md`` and ``outcomes.jsonl`` into a folder.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import cpuinfo

from benchmarks.counts import positive
from benchmarks.forkjoin.models import LARGE, MAX_MODEL_LEN
from benchmarks.forkjoin.plans import MAX_CHILDREN, Plan, equal
from benchmarks.forkjoin.sides import PLUGIN, Workshop
from benchmarks.plugin_forkjoin.contestants import CONTESTANTS, WITHOUT_FORK
from benchmarks.plugin_forkjoin.load import measure_load
from benchmarks.plugin_forkjoin.measure import FULL, QUICK, measure
from benchmarks.plugin_forkjoin.outcomes import Outcomes
from benchmarks.plugin_forkjoin.page import write_page


def main() -> None:
    """Measure, write the page, and print its path."""
    arguments = _arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    suite, command = FULL, "make bench-plugin"
    if arguments.quick:
        suite, command = QUICK, "make bench-plugin-quick"
    if arguments.plan:
        suite = replace(FULL, grids=((LARGE, arguments.plan),))
        command = shlex.join(["python", "-m", "benchmarks.plugin_forkjoin", *sys.argv[1:]])
    suite = replace(suite, rounds=arguments.rounds or suite.rounds)
    contestants = WITHOUT_FORK if arguments.without_fork else CONTESTANTS
    kinds = tuple(dict.fromkeys(each.kind for each in contestants))
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder), kinds, arguments.plugin)
        outcomes = Outcomes.saved(measure(suite, workshop, contestants), arguments.output / "outcomes.jsonl")
        loaded = [] if arguments.quick or arguments.plan else list(measure_load(workshop))
    page = arguments.output / "benchmarks.md"
    seconds = time.perf_counter() - start
    page.write_text(write_page(outcomes, loaded, command, seconds, device_of(arguments.plugin)))
    print(page)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="a subset, in less than five minutes")
    which.add_argument(
        "--plan",
        type=plan_of,
        action="append",
        metavar="CONTEXT,CHILDREN,TOKENS",
        help="measure this plan, and others given in the same way, instead of the suite",
    )
    parser.add_argument("--rounds", type=positive, help="how often each plan is measured")
    parser.add_argument("--output", type=Path, default=Path("build/bench-plugin"), help="folder to write into")
    parser.add_argument("--plugin", type=Path, default=PLUGIN, help="the interpreter of the plug-in's environment")
    parser.add_argument(
        "--without-fork", action="store_true", help="leave the fork of 0.9.2 out, where it cannot be built"
    )
    return parser.parse_args()


def plan_of(text: str) -> Plan:
    """The plan that ``text`` stands for: tokens of the prompt, children, and tokens of each child."""
    try:
        context, num_children, length = map(int, text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form CONTEXT,CHILDREN,TOKENS") from error
    # A child's last token is its EOS.
    if context < 1 or length < 2 or not 1 <= num_children <= MAX_CHILDREN:
        raise argparse.ArgumentTypeError(
            f"{text!r}: at least 1 token, 1 to {MAX_CHILDREN} children, of 2 tokens or more"
        )
    plan = equal(context, num_children, length)
    if (longest := context + plan.num_sampled) > MAX_MODEL_LEN:
        raise argparse.ArgumentTypeError(
            f"{text!r}: the joined tree has {longest} tokens, and the model takes {MAX_MODEL_LEN}"
        )
    return plan


def device_of(interpreter: Path) -> str:
    """The name of the device that the vLLM of an environment computes on."""
    ask = "from vllm.platforms import current_platform as here; print(here.is_cpu() or here.get_device_name())"
    told = subprocess.run([interpreter, "-c", ask], capture_output=True, text=True, check=True, env=os.environ)
    name = told.stdout.strip().splitlines()[-1]
    cpu: str = cpuinfo.get_cpu_info()["brand_raw"]
    return f"{os.cpu_count()} x {cpu}" if name == "True" else f"{name}, beside {cpu}"


if __name__ == "__main__":
    main()
