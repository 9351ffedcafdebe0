# SPDX-License-Identifier: Apache-2.0
"""Outlines on a real chat model against answers in sequence and against a client: `make bench-language`.

Writes ``benchmarks.md`` and ``outcomes.jsonl`` into a folder. It runs in the plug-in's environment; a model that was
trained to fork is measured beside the first one with ``--trained FOLDER``, by default with the hooks of
`examples/language_task.py`.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cpuinfo
import psutil
from language_task import HOOKS

from benchmarks.counts import positive
from benchmarks.language.measure import Group, measure
from benchmarks.language.page import write_page
from benchmarks.language.questions import DEFAULT, read_questions
from benchmarks.language.requests import Prompts
from benchmarks.language.ways import TRAINED, UNTRAINED, Way
from sequence_hooks.config import SpecialKwargs

MAX_MODEL_LEN = 2048
SETTINGS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "2"}


@dataclass(frozen=True)
class Subject:
    """A model, its hooks, and the ways that are measured with it."""

    name: str
    model: str
    fields: Mapping[str, Any]
    ways: tuple[Way, ...]


def main() -> None:
    """Measure, write the page, and print its path."""
    arguments = _arguments()
    # Before upstream is imported, which reads them.
    os.environ.update({**SETTINGS, **{name: os.environ[name] for name in SETTINGS if name in os.environ}})
    questions = read_questions(arguments.file, arguments.questions)
    arguments.output.mkdir(parents=True, exist_ok=True)
    start, before = time.perf_counter(), _busy_elsewhere()
    groups: list[Group] = []
    sides = (_in_process,) if arguments.in_process else (_in_process, _over_http)
    for subject in _subjects(arguments):
        for side in sides:
            groups += asyncio.run(saved(side(subject, questions), arguments.output / "outcomes.jsonl", bool(groups)))
    seconds = time.perf_counter() - start
    page = arguments.output / "benchmarks.md"
    told = {**_told(arguments, seconds), "elsewhere": max(0.0, _busy_elsewhere() - before) / seconds}
    page.write_text(write_page(groups, told))
    print(page)


def _busy_elsewhere() -> float:
    """Seconds of all processors but those of this process and of the servers that it has waited for."""
    all_, own = psutil.cpu_times(), psutil.Process().cpu_times()
    ours = own.user + own.system + own.children_user + own.children_system
    return float(all_.user + all_.nice + all_.system + all_.irq + all_.softirq + all_.steal - ours)


async def saved(groups: AsyncIterator[Group], path: Path, continues: bool) -> list[Group]:
    """All groups; each is written to ``path`` as it comes, for a run that is cut off.

    Args:
        continues: Whether what is in the file stays there.
    """
    found: list[Group] = []
    with path.open("a" if continues else "w") as file:
        async for each in groups:
            record = {**asdict(each), "steps": [list(vars(step).values()) for step in each.steps]}
            print(json.dumps(record), file=file, flush=True)
            found.append(each)
    return found


async def _in_process(subject: Subject, questions: Sequence[str]) -> AsyncIterator[Group]:
    from benchmarks.language.in_process import InProcess

    caller = InProcess(
        subject.model, subject.fields, dtype="float32", max_model_len=MAX_MODEL_LEN, disable_log_stats=True
    )
    prompts = Prompts(caller.tokenizer, SpecialKwargs(**subject.fields))
    async for each in measure(f"{subject.name}, in process", caller, prompts, subject.ways, questions):
        yield each


async def _over_http(subject: Subject, questions: Sequence[str]) -> AsyncIterator[Group]:
    from transformers import AutoTokenizer

    from benchmarks.language.over_http import OverHttp, served

    prompts = Prompts(AutoTokenizer.from_pretrained(subject.model), SpecialKwargs(**subject.fields))
    options = ["--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN)]
    with (
        tempfile.TemporaryDirectory() as folder,
        served(subject.model, subject.fields, Path(folder) / "log", *options) as address,
    ):
        async for each in measure(f"{subject.name}, over HTTP", OverHttp(address), prompts, subject.ways, questions):
            yield each


def _subjects(arguments: argparse.Namespace) -> list[Subject]:
    fields = {"protocol": "skeleton", "max_children": arguments.points}
    found = [Subject("Outlines", str(arguments.model), fields, UNTRAINED)]
    if arguments.trained:
        # Its sequential answer comes from the same engine.
        hooks = {**arguments.trained_hooks, "hooks_on_request": True}
        found.append(Subject("Trained", str(arguments.trained), hooks, TRAINED))
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the folder of a chat model; `make language-model` prints one")
    parser.add_argument("--file", type=Path, default=DEFAULT, help="questions, one on each line")
    parser.add_argument("--questions", type=positive, default=50, help="how many of them are asked")
    parser.add_argument("--points", type=positive, default=10, help="the most points of an outline")
    parser.add_argument("--trained", type=Path, help="the folder of a model that was trained to fork")
    parser.add_argument("--trained-hooks", type=json.loads, default=HOOKS, help="its fields of SpecialKwargs, as JSON")
    parser.add_argument("--in-process", action="store_true", help="measure no server")
    parser.add_argument("--output", type=Path, default=Path("build/bench-language"), help="folder to write into")
    return parser.parse_args()


def _told(arguments: argparse.Namespace, seconds: float) -> dict[str, object]:
    import vllm

    return {
        "command": "`make bench-language`",
        "minutes": seconds / 60,
        "when": time.strftime("%Y-%m-%d"),
        "device": f"{os.cpu_count()} x {cpuinfo.get_cpu_info()['brand_raw']}",
        "model": arguments.model.name,
        "version": vllm.__version__,
        "num_questions": arguments.questions,
    }


if __name__ == "__main__":
    main()
