# SPDX-License-Identifier: Apache-2.0
"""The form of an outline (`sequence_hooks.protocols.skeleton`): its text, its grammar, and the answer without it.

1. Sleep\\n2. Exercise\\n###
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sequence_hooks.config.messages import abbreviated

TRIGGER = "###"
THOUGHT = "</think>"
"""Ends what a model thinks before its answer."""

MAX_CHARACTERS = 200
"""The longest point that is expanded."""

_POINT = re.compile(r"(\d{1,6})\. (\S.*)")
_BEGUN = re.compile(r"\d{0,6}|\d{1,6}\.( .*)?|#{1,2}")
_OTHER = r"\n#<>\[\]|"
"""What no point of a grammar or of a caller has: it could be a control token's."""

_OWN = re.compile(rf"[^{_OTHER}]{{1,{MAX_CHARACTERS}}}")


@dataclass(frozen=True)
class Parts:
    """An answer that begins with an outline."""

    thought: str
    """What is before it."""

    points: tuple[str, ...]
    after: str
    """What follows its mark."""


def parts_of(text: str, own: Sequence[str] = ()) -> Parts | None:
    """The parts of an answer; None if it has no outline.

    Args:
        own: The points of a caller's own outline, which ends the prompt, so that the answer has but the mark.
    """
    thought, end, answer = text.rpartition(THOUGHT)
    outline, trigger, after = answer.partition(TRIGGER)
    points = tuple(own) if own and not outline.strip() else tuple(_points(outline.strip().splitlines()))
    return Parts(thought + end, points, after) if trigger and points else None


def may_become_outline(text: str) -> bool:
    """Whether an answer so far may be the beginning of an outline."""
    *lines, last = text.rpartition(THOUGHT)[2].lstrip().split("\n")
    return all(_POINT.fullmatch(line) for line in lines if line.strip()) and bool(_BEGUN.fullmatch(last.lstrip()))


def outline_regex(most: int, concludes: bool) -> str:
    """The grammar of an answer that is an outline of at most so many points.

    Args:
        concludes: Whether anything follows the outline.
    """
    lines = ""
    for number in range(most, 0, -1):
        rest = f"({lines})?" if number > 1 and lines else lines
        # Without a full stop, no point goes on with the next one's number.
        lines = rf"{number}\. [^ .{_OTHER}][^.{_OTHER}]{{1,59}}\n{rest}"
    return lines + mark_regex(concludes)


def outline_or_other_regex(most: int, concludes: bool) -> str:
    """The grammar of such an outline, or of any answer that does not begin as one."""
    return rf"({outline_regex(most, concludes)}|[^1](.|\n)*)"


def mark_regex(concludes: bool) -> str:
    """The grammar of what follows an outline."""
    return rf"{TRIGGER}(\n\n(.|\n)+)" if concludes else TRIGGER


def checked_outline(given: Any, most: int) -> tuple[str, ...]:
    """The points that a caller gives.

    Raises:
        ValueError: they are none, too many, or no lines of plain text.
    """
    if not isinstance(given, (list, tuple)) or not 1 <= len(given) <= most:
        raise ValueError(f"outline is {abbreviated(given)}; give a list of 1 to {most} points")
    for point in given:
        if not isinstance(point, str) or not point.strip() or not _OWN.fullmatch(point):
            raise ValueError(
                f"outline has {abbreviated(point)}; give lines of 1 to {MAX_CHARACTERS} characters without any of "
                "#<>[]|"
            )
    return tuple(point.strip() for point in given)


def numbered(points: Sequence[str]) -> str:
    """The text of an outline."""
    return "\n".join(f"{number}. {point}" for number, point in enumerate(points, 1))


def outline_in(text: str) -> list[str]:
    """The points of an answer that is an outline and the trigger; none if it is anything else."""
    parts = parts_of(text)
    return [] if parts is None else list(parts.points)


def last_outline_in(prompt: str) -> list[str]:
    """The points that end a prompt."""
    lines = prompt.rstrip().splitlines()
    first = next((index for index in reversed(range(len(lines))) if re.search(r"(?:^|\D)1\. \S", lines[index])), None)
    if first is None:
        return []
    # What begins an assistant's answer may stand on the same line.
    begun = re.sub(r"^.*?(?<!\d)(?=1\. \S)", "", lines[first])
    return _points([begun, *lines[first + 1 :]])


def num_breaks_after(text: str) -> int:
    """How many line breaks, up to an empty line, an expansion ends with."""
    return min(2, len(text) - len(text.rstrip("\n")))


def heading(number: int, point: str) -> str:
    """What the expansion of a point begins with."""
    return f"{number}. {point.rstrip(' :.')}:"


def _points(lines: Sequence[str]) -> list[str]:
    found = [_POINT.fullmatch(line.strip()) for line in lines if line.strip()]
    counted = [(int(each[1]), each[2].strip()) for each in found if each]
    is_outline = len(counted) == len(found) and [number for number, _ in counted] == [*range(1, len(found) + 1)]
    return [point for _, point in counted] if is_outline else []
