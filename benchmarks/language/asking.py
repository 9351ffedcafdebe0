# SPDX-License-Identifier: Apache-2.0
"""Which questions are answered by an outline, by how a model is asked: ``python -m benchmarks.language.asking MODEL``.

No grammar holds it to anything. The questions are those of the benchmark and fifty of ``asked.tsv``, which says what
answer each wants; all are asked with and without a system prompt, each way at once.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.language.__main__ import MAX_MODEL_LEN, SETTINGS
from benchmarks.language.page import markdown
from benchmarks.language.questions import DEFAULT, read_questions
from benchmarks.language.requests import Answered, Wanted
from sequence_hooks.config.outline_prompt import BEGINNING, TRIGGER, OutlinePrompt
from sequence_hooks.protocols.outlines import points_in

INTRODUCTION = """# How a model is asked for an outline

Made by `python -m benchmarks.language.asking MODEL`, {when}, with
{model}, in float32, greedy, and without any grammar. It says which of 100
questions are answered by an outline ([skeleton.md](../skeleton.md)): the 50 of
[the benchmark](benchmarks-language.md), which want several points, and 50 others in three languages, with and without a
system prompt. An outline begins with `1. ` and has nothing but numbered lines; it is whole if it ends with `###` within
{longest} tokens. Points that say the same count once.

| asked by | |
| --- | --- |
| examples | six worked examples as earlier turns, and one sentence: what the server does |
| an instruction | three sentences after the question: what it did before |

"""
ASKED = Path(__file__).with_name("asked.tsv")
OF_THE_BENCHMARK = "of the benchmark"
SYSTEM = "You are the assistant of a city library. Be polite."
LONGEST = 60
"""Tokens that are looked at."""

NUM_POINTS = 10
INSTRUCTION = OutlinePrompt(
    (),
    "First write only the skeleton of your answer: a numbered list of 3 to {points} of at most five words each, one on "
    "each line and nothing else, and then ###. Only if a short answer is enough, give that instead, without a list.",
)
WAYS = {"examples": OutlinePrompt(), "an instruction": INSTRUCTION}


@dataclass(frozen=True)
class Begun:
    """How an answer begins."""

    kind: str
    """What answer its question wants."""

    num_points: int
    """Of an outline; 0 if it is none."""

    is_whole: bool
    """Whether it ends with the mark."""

    num_tokens: int
    num_prompt: int


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the folder of a chat model; `make language-model` prints one")
    arguments = parser.parse_args()
    os.environ.update(SETTINGS)
    told = {"when": time.strftime("%Y-%m-%d"), "model": arguments.model.name, "longest": LONGEST}
    print(INTRODUCTION.format(**told) + asyncio.run(_measured(str(arguments.model))), end="")


async def _measured(model: str) -> str:
    from benchmarks.language.in_process import InProcess

    fields = {"protocol": "skeleton"}
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": MAX_MODEL_LEN, "gpu_memory_utilization": 0.4}
    caller = InProcess(model, fields, disable_log_stats=True, **options)
    found: dict[tuple[str, str | None], Sequence[Begun]] = {}
    for system in (None, SYSTEM):
        for way, prompt in WAYS.items():
            asked = [(kind, _wanted(caller.tokenizer, prompt, system, question)) for kind, question in questions()]
            answers = await asyncio.gather(*(caller.call(wanted) for _, wanted in asked))
            read = zip(asked, answers, strict=True)
            found[way, system] = [begun(caller.tokenizer, kind, wanted, each) for (kind, wanted), each in read]
    return table(found)


def questions() -> Iterator[tuple[str, str]]:
    """What answer each wants, and the question."""
    yield from ((OF_THE_BENCHMARK, question) for question in read_questions(DEFAULT, 50))
    for line in ASKED.read_text(encoding="utf-8").splitlines():
        kind, question = line.split("\t")
        yield kind, question


def _wanted(tokenizer: Any, prompt: OutlinePrompt, system: str | None, question: str) -> Wanted:
    messages = [{"role": "system", "content": system}] if system else []
    for one, other in prompt.turns(NUM_POINTS):
        messages += [{"role": "user", "content": one}, {"role": "assistant", "content": other}]
    messages.append({"role": "user", "content": f"{question}\n\n{prompt.asking(NUM_POINTS)}"})
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    return Wanted(tuple(ids), LONGEST, stop=(TRIGGER,))


def begun(tokenizer: Any, kind: str, wanted: Wanted, answer: Answered) -> Begun:
    """How an answer begins."""
    text = tokenizer.decode(answer.token_ids, skip_special_tokens=True)
    points = points_in(text) if text.startswith(BEGINNING) else None
    num_tokens, num_prompt = len(answer.token_ids), len(wanted.prompt)
    return Begun(kind, len(points or ()), bool(points) and TRIGGER in text, num_tokens, num_prompt)


def table(found: dict[tuple[str, str | None], Sequence[Begun]]) -> str:
    """What was found, by how the model was asked and with which system prompt."""
    headers = [
        "answer wanted",
        "asked by",
        "system prompt",
        "outlines",
        "with their mark",
        "points",
        "tokens",
        "prompt",
    ]
    rows = []
    for kind in dict.fromkeys(each.kind for answers in found.values() for each in answers):
        for (way, system), answers in found.items():
            own = [each for each in answers if each.kind == kind]
            outlines = [each for each in own if each.num_points]
            told = [f"{statistics.mean(each):.1f}" if each else "-" for each in _figures(outlines)]
            whole, prompt = sum(each.is_whole for each in own), statistics.mean(each.num_prompt for each in own)
            shown = [f"{len(outlines)} of {len(own)}", str(whole), *told, f"{prompt:.0f}"]
            rows.append([kind, way, "yes" if system else "no", *shown])
    return markdown(headers, rows)


def _figures(outlines: Sequence[Begun]) -> list[list[int]]:
    return [[each.num_points for each in outlines], [each.num_tokens for each in outlines]]


if __name__ == "__main__":
    main()
