# SPDX-License-Identifier: Apache-2.0
"""How a chat model is asked for an outline (`sequence_hooks.protocols.skeleton`): by examples, then by a sentence."""

from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from sequence_hooks.text.messages import abbreviated, abbreviated_error

HANDLER = "sequence_hooks.protocols.skeleton.handler"
"""The factory of the handler that expands outlines."""

TRIGGER = "###"
"""The mark that ends an outline."""

BEGINNING = "1. "
"""The beginning of every outline. An answer that begins otherwise is not an outline."""

Text = Annotated[str, msgspec.Meta(pattern=r"\S")]


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An earlier turn of the conversation."""

    question: Text
    answer: Text

    def __post_init__(self) -> None:
        if self.answer.startswith(BEGINNING) and not self.answer.endswith(f"\n{TRIGGER}"):
            raise ValueError(f"{abbreviated(self.answer)} is an outline without a last line {TRIGGER}")


_EXAMPLES = (
    Example("How can I save money?", "1. Make a budget\n2. Cook at home\n3. Compare prices\n4. Avoid debts\n###"),
    Example("What is the capital of Japan?", "Tokyo."),
    Example("Write a short poem about rain.", "Rain taps softly on the pane,\nwashing dust from street and lane."),
    Example("What makes a good holiday?", "1. Enough rest\n2. Good company\n3. New places\n###"),
    Example("Is a whale a fish?", "No, it is a mammal."),
    Example("Hello!", "Hello! How can I help you?"),
)


class OutlinePrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text that is put before a question, and after it."""

    examples: tuple[Example, ...] = _EXAMPLES
    """They are shown with `outline` after each question."""

    outline: Text = "Give only the outline of your answer, of at most {points}, or the answer if it is short."
    """Follows a question that may be answered without an outline. ``{points}`` becomes "10 points", say."""

    always: Text = "Give only the outline of your answer, of at most {points}."
    """Follows a question that must be answered with an outline."""

    conclusion: Text = "After ### write a conclusion of one or two sentences."
    """Follows in addition where a conclusion is to follow the points."""

    def turns(self, num_points: int) -> list[tuple[str, str]]:
        """The examples as they are shown."""
        return [(f"{each.question}\n\n{self.asking(num_points)}", each.answer) for each in self.examples]

    def asking(self, num_points: int, may_be_other: bool = True, concludes: bool = False) -> str:
        """What follows a question whose answer may have so many points."""
        text = self.outline if may_be_other else self.always
        asked = text.replace("{points}", "one point" if num_points == 1 else f"{num_points} points")
        return f"{asked} {self.conclusion}" if concludes else asked


@cache
def outline_prompt(path: str | None) -> OutlinePrompt:
    """The prompt of a JSON file, which has some of the fields of `OutlinePrompt`; without a path, the built-in one.

    A running server keeps what it has read first.

    Raises:
        ValueError: the file cannot be read, or has other contents.
    """
    if path is None:
        return OutlinePrompt()
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=OutlinePrompt)
    except (OSError, msgspec.MsgspecError) as error:
        names = ", ".join(OutlinePrompt.__struct_fields__)
        said = abbreviated_error(error)
        raise ValueError(f"it cannot be read: {said}; give the path of a JSON object with some of {names}") from None
