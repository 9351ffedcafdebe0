# SPDX-License-Identifier: Apache-2.0
"""Writes ``benchmarks.md`` and the plots from the raw figures: ``python -m benchmarks.forkjoin.report FOLDER``."""

import sys
from pathlib import Path

from benchmarks.forkjoin import plots, tables
from benchmarks.forkjoin.models import SMALL
from benchmarks.forkjoin.quiet import MAX_ELSEWHERE, TRIES
from benchmarks.forkjoin.results import Results
from benchmarks.forkjoin.targets import targets
from benchmarks.forkjoin.verdicts import LONE_NOISE, MIN_NOISE
from benchmarks.forkjoin.ways import MAX_CLIENT_TREES

PAGE = Path(__file__).with_name("page.md")


def write(results: Results, folder: Path) -> None:
    """Write the page and the plots into ``folder``."""
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    plots.speed_up(results, images / "speedup.png")
    plots.steps(results, images / "steps.png")
    plan = results.figures[0].plan
    page = PAGE.read_text().format(
        command=results.command,
        minutes=results.seconds / 60,
        stopped="" if results.complete else ", when it was stopped",
        machine=_machine(results),
        max_elsewhere=MAX_ELSEWHERE,
        tries=TRIES,
        disturbed=sum(each.elsewhere > MAX_ELSEWHERE for each in results.figures),
        num_figures=len(results.figures),
        lead=plan.lead,
        tail=plan.tail,
        targets=targets(results),
        least_noise=MIN_NOISE,
        lone_noise=LONE_NOISE,
        grids="".join(_grid(results, model) for model in results.models if results.plans(model, "in_sequence")),
        batches="".join(_batches(results, model) for model in results.models if results.plans(model, "batch")),
        small=SMALL.name,
        max_client_trees=MAX_CLIENT_TREES,
        forests=tables.forests(results),
        loads=_loads(results),
    )
    (folder / "benchmarks.md").write_text(page)


def _machine(results: Results) -> str:
    machine = results.machine
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    return f"{machine.processor}, {machine.cores} cores, {machine.threads} threads; Python {machine.python}, {versions}"


def _grid(results: Results, model: str) -> str:
    return f"""
### {model}

Seconds of a whole request, its prompt's prefill included:

{tables.end_to_end(results, model)}

Speed-up over decoding in sequence; how much of the bound is reached between the fork and the parent's next token; the
clients' time by that of hooks:

{tables.speed_ups(results, model)}

Joins: tokens that the model computes, its time up to the parent's next token; peak blocks against independent copies:

{tables.joins(results, model)}

Forks: the outputs of the forking step, and the children's first step, which computes two tokens of each, beyond the
median of theirs:

{tables.forks(results, model)}
"""


def _batches(results: Results, model: str) -> str:
    return f"\n{model}:\n\n{tables.steps(results, model)}\n"


def _loads(results: Results) -> str:
    if not results.loads:
        return "Not measured in this run."
    sides = list(results.loads[0]["runs"])
    headers = ["load", "blocks", *sides, "auto / best fixed policy", "auto / hooks off"]
    rows = []
    for load in results.loads:
        rates = [f"{tables.throughput(load['runs'][side]):.0f}" for side in sides]
        gains = [f"{load[name]:.2f}" for name in ("auto_to_best_fixed", "auto_to_hooks_off")]
        rows.append([f"{load['load']:g}x", str(load["num_blocks"]), *rates, *gains])
    return tables.markdown(headers, rows)


if __name__ == "__main__":
    write(Results.load(Path(sys.argv[1]) / "benchmarks.json"), Path(sys.argv[1]))
