# SPDX-License-Identifier: Apache-2.0
"""How a chat model is asked for an outline (`sequence_hooks.protocols.skeleton`): by examples, then by a sentence."""

import json
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from sequence_hooks.text.messages import abbreviated, abbreviated_error

HANDLER = "sequence_hooks.protocols.skeleton.handler"
"""What expands outlines."""

TRIGGER = "###"
"""The mark that ends an outline."""

BEGINNING = "1. "
"""What an outline begins with. An answer that begins otherwise is none."""

_EXAMPLES = (
    ("How can I save money?", "1. Make a budget\n2. Cook at home\n3. Compare prices\n4. Avoid debts\n###"),
    ("What is the capital of Japan?", "Tokyo."),
    ("Write a short poem about rain.", "Rain taps softly on the pane,\nwashing dust from street and lane."),
    ("What makes a good holiday?", "1. Enough rest\n2. Good company\n3. New places\n###"),
    ("Is a whale a fish?", "No, it is a mammal."),
    ("Hello!", "Hello! How can I help you?"),
)


@dataclass(frozen=True)
class OutlinePrompt:
    """What stands before a question, and after it."""

    examples: tuple[tuple[str, str], ...] = _EXAMPLES
    """Questions and answers, which are shown as earlier turns of the conversation, each with `outline` after it."""

    outline: str = "Give only the outline of your answer, of at most {points}, or the answer if it is short."
    """Follows a question that may be answered without an outline. ``{points}`` becomes "10 points", say."""

    always: str = "Give only the outline of your answer, of at most {points}."
    """Follows one that may not."""

    conclusion: str = "After ### write a conclusion of one or two sentences."
    """Follows in addition where a conclusion is to follow the points."""

    def turns(self, num_points: int) -> list[tuple[str, str]]:
        """The examples as they are shown."""
        return [(f"{question}\n\n{self.asking(num_points)}", answer) for question, answer in self.examples]

    def asking(self, num_points: int, may_be_other: bool = True, concludes: bool = False) -> str:
        """What follows a question whose answer may have so many points."""
        text = self.outline if may_be_other else self.always
        asked = text.replace("{points}", "one point" if num_points == 1 else f"{num_points} points")
        return f"{asked} {self.conclusion}" if concludes else asked


@cache
def outline_prompt(path: str | None) -> OutlinePrompt:
    """That of a JSON file, which has some of the fields of `OutlinePrompt`; without a path, our own.

    An example is an object of ``question`` and ``answer``. A server that runs has what it has read first.

    Raises:
        ValueError: the file cannot be read, or has something else.
    """
    if path is None:
        return OutlinePrompt()
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"it cannot be read: {abbreviated_error(error)}; give the path of a JSON file") from None
    names = [field.name for field in fields(OutlinePrompt)]
    unknown = [name for name in given if name not in names] if isinstance(given, dict) else [given]
    if unknown:
        raise ValueError(f"it has {abbreviated(unknown[0])}; give an object with some of {', '.join(names)}")
    texts = {name: value for name, value in given.items() if name != "examples"}
    for name, value in texts.items():
        _check_text(name, value)
    if "examples" not in given:
        return replace(OutlinePrompt(), **texts)
    return replace(OutlinePrompt(), examples=_checked(given["examples"]), **texts)


def _checked(examples: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(examples, list) or any(set(each) != {"question", "answer"} for each in map(_keys, examples)):
        raise ValueError(f"its examples are {abbreviated(examples)}; give a list of objects of question and answer")
    for each in examples:
        for name, value in each.items():
            _check_text(f"{name} of an example", value)
        if each["answer"].startswith(BEGINNING) and not each["answer"].endswith(f"\n{TRIGGER}"):
            raise ValueError(f"its answer {abbreviated(each['answer'])} is an outline without a last line {TRIGGER}")
    return tuple((each["question"], each["answer"]) for each in examples)


def _keys(example: Any) -> Any:
    return example if isinstance(example, dict) else ()


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip() or any("\ud800" <= each <= "\udfff" for each in value):
        raise ValueError(f"its {name} is {abbreviated(value)}; give a text that can be encoded as UTF-8")
