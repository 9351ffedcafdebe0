# SPDX-License-Identifier: Apache-2.0
"""Outlines on a real chat model against answers in sequence and against a client: `make bench-language`.

Writes ``benchmarks.md`` and ``outcomes.jsonl`` into a folder; a run that was cut off goes on there. It runs in the
plug-in's environment; a model that was trained to fork is measured beside the first one with ``--trained FOLDER``, by
default with the hooks of `examples/language_task.py`.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from language_task import HOOKS

from benchmarks.counts import positive
from benchmarks.language.machine import device
from benchmarks.language.measure import Plan, measure, planned
from benchmarks.language.outcomes import Outcomes
from benchmarks.language.page import OF_ANOTHER_ENGINE, write_page
from benchmarks.language.questions import DEFAULT, read_questions
from benchmarks.language.requests import Prompts
from benchmarks.language.ways import AT_THE_MARK, TRAINED, UNTRAINED, Way
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.outline_prompt import HANDLER, TRIGGER

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
    """Measure what the folder lacks, write the page, and print its path."""
    arguments = _arguments()
    # Before upstream is imported, which reads them.
    os.environ.update({**SETTINGS, **{name: os.environ[name] for name in SETTINGS if name in os.environ}})
    arguments.output.mkdir(parents=True, exist_ok=True)
    setting = _setting(arguments)
    try:
        plan = planned(read_questions(arguments.file, arguments.questions))
        outcomes = Outcomes(arguments.output / "outcomes.jsonl", setting)
    except ValueError as error:
        sys.exit(f"error: {error}")
    sides = (_in_process,) if arguments.in_process else (_in_process, _over_http)
    for subject in _subjects(arguments):
        for side in sides:
            asyncio.run(side(subject, plan, outcomes))
    page = arguments.output / "benchmarks.md"
    told = {"command": "`make bench-language`", "when": time.strftime("%Y-%m-%d"), "num_questions": arguments.questions}
    page.write_text(write_page(outcomes.groups, {**setting, **told}))
    print(page)


async def _in_process(subject: Subject, plan: Plan, outcomes: Outcomes) -> None:
    name = f"{subject.name}, in process"
    if not (lacking := outcomes.lacking(name, plan)):
        return
    from benchmarks.language.in_process import InProcess

    caller = InProcess(
        subject.model, subject.fields, dtype="float32", max_model_len=MAX_MODEL_LEN, disable_log_stats=True
    )
    prompts = Prompts(caller.tokenizer, SpecialKwargs(**subject.fields))
    async for each in measure(name, caller, prompts, subject.ways, lacking):
        outcomes.add(each)


async def _over_http(subject: Subject, plan: Plan, outcomes: Outcomes) -> None:
    name = f"{subject.name}, over HTTP"
    if not (lacking := outcomes.lacking(name, plan)):
        return
    import httpx
    from transformers import AutoTokenizer

    from benchmarks.language.over_http import PATIENCE_SECONDS, OverHttp, served

    prompts = Prompts(AutoTokenizer.from_pretrained(subject.model), SpecialKwargs(**subject.fields))
    options = ["--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN)]
    with (
        tempfile.TemporaryDirectory() as folder,
        served(subject.model, subject.fields, Path(folder) / "log", *options) as address,
    ):
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_SECONDS) as client:
            async for each in measure(name, OverHttp(client), prompts, subject.ways, lacking):
                outcomes.add(each)


def _subjects(arguments: argparse.Namespace) -> list[Subject]:
    fields = {"protocol": "skeleton", "max_children": arguments.points}
    marked = {**fields, "handlers": {TRIGGER: HANDLER}}
    found = [
        Subject("Outlines", str(arguments.model), fields, UNTRAINED),
        Subject(f"Outlines{OF_ANOTHER_ENGINE}", str(arguments.model), marked, AT_THE_MARK),
    ]
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


def _setting(arguments: argparse.Namespace) -> dict[str, object]:
    """What the results of one file have in common."""
    import vllm

    return {
        "device": device(),
        "model": arguments.model.name,
        "version": vllm.__version__,
        "points": arguments.points,
    }


if __name__ == "__main__":
    main()
