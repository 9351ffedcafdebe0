# SPDX-License-Identifier: Apache-2.0
"""What the language model is taught: to answer a question by points that are expanded side by side.

A finished run, whose tags are tokens that the tokenizer of SmolLM2-135M-Instruct has and its chats do not use::

    parent:   1. **Walk daily**<filename>⏎2. **Sleep enough**<filename>⏎⏎<repo_name>
    child 1:  (all that its parent has up to its promise) <reponame>Walking keeps ...
    child 2:  (the same, up to the second promise) <reponame>Sleep gives ...
    joined:   Walking keeps ...⏎⏎Sleep gives ...
    parent:   ⏎⏎In short, ...

Without its tags, which are special tokens, the parent's text is the answer that a reader gets.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sequence_hooks.training import Fork, InsertedText, ResultOf, SampledText, TextTree

PROMISE, SYNC, CHILD = "<filename>", "<repo_name>", "<reponame>"
SEPARATOR = "\n\n"
BEFORE_CLOSING = "\n\nIn short,"
HOOKS: dict[str, Any] = {
    "promise_token": PROMISE,
    "sync_token": SYNC,
    "block_on": "sync",
    "child_prefix": CHILD,
    "merge_separator": SEPARATOR,
    "child_sampling_params": {"max_tokens": 120},
}
"""The fields of `SpecialKwargs` that the model is served with."""

QUESTIONS = Path(__file__).parent / "forkjoin-language" / "questions"
_POINT = re.compile(r"(\d+)\. \*\*([^*\n]+)\*\*")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer in points."""

    question: str
    points: tuple[str, ...]
    expansions: tuple[str, ...]
    """One for each point."""

    closing: str
    """One sentence; it begins with `In short,`."""


def questions(name: str) -> list[str]:
    """The questions of ``questions/NAME.txt``, one a line."""
    return (QUESTIONS / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def read(path: Path) -> list[Answer]:
    """The answers of a file that `language_data.py` has written."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Answer(**row | {name: tuple(row[name]) for name in ("points", "expansions")}) for row in rows]


def outline(points: Sequence[str], after_each: str = "") -> str:
    """A numbered list, with ``after_each`` point what is given."""
    return "\n".join(f"{number}. **{point}**{after_each}" for number, point in enumerate(points, 1))


def points_of(text: str) -> tuple[str, ...]:
    """The points of a list that `outline` has written.

    Raises:
        ValueError: it is no such list, or its numbers are not 1, 2, 3.
    """
    found = _POINT.findall(text)
    points = tuple(point for _, point in found)
    if not points or outline(points) != text:
        raise ValueError(f"no numbered list of points: {text!r}")
    return points


def chat(question: str, tokenizer: Any) -> str:
    """The prompt that an answer follows, in the model's chat template."""
    message = [{"role": "user", "content": question}]
    return str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))


def tree_of(answer: Answer, prompt: str, eos: str) -> TextTree:
    """The run that comes to ``answer``, as the engine computes it."""
    output: list[SampledText | InsertedText | Fork | ResultOf] = []
    for number, (point, expansion) in enumerate(zip(answer.points, answer.expansions, strict=True), 1):
        line_break = "\n" if number > 1 else ""
        end = SampledText(eos, in_result=False)
        child = TextTree(f"point {number}", CHILD, (SampledText(expansion), end))
        output += [SampledText(f"{line_break}{number}. **{point}**{PROMISE}"), Fork(child)]
    output.append(SampledText(f"{SEPARATOR}{SYNC}"))
    for number in range(1, len(answer.points) + 1):
        output += [InsertedText(SEPARATOR)] * (number > 1) + [ResultOf(f"point {number}")]
    return TextTree(answer.question, prompt, (*output, SampledText(f"\n\n{answer.closing}{eos}")))


def has_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16; where it does not, float32 is faster."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
