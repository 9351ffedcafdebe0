# SPDX-License-Identifier: Apache-2.0
"""The form of an outline (`sequence_hooks.protocols.skeleton`), its grammar, and the answer that is made of it::

the outline   1. Sleep\\n2. Exercise\\n###
the answer    1. Sleep: Seven hours a night...\\n\\n2. Exercise: Half an hour...
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sequence_hooks.config.outline_prompt import TRIGGER
from sequence_hooks.text.messages import abbreviated

MAX_CHARACTERS = 200
"""The longest point that is expanded."""

OWN_POINTS = "outline"
"""The extra argument of a request with its caller's own points, which end its prompt, so that its answer has but the
mark."""

ANSWER_TOKENS = "answer_tokens"
"""The extra argument with how many tokens the outline and its expansions may have in total."""

NUM_POINTS = "num_points"
"""The extra argument with how many points are asked for at most."""

POINT_TOKENS = "point_tokens"
"""The extra argument with how many tokens an expansion may have where there is no lack of them."""

TOKENS_PER_LINE = 24
"""What is set aside for a line of an outline that is not written yet."""

_LINE = re.compile(r"(\d{1,6})\. (\S.*)", re.DOTALL)
_NUMBERED = re.compile(r"(\d{1,6})[.)]\s+(?=\S)")
_OTHER = r"\n#<>\[\]|"
"""What no point of a grammar has: it could be a control token's."""

_ANY = r"[^\x00]"
"""Any character. In ``(.|\\n)`` each line break doubles what V0's xgrammar follows, until a step takes seconds."""

_OWN = re.compile(rf"[^{_OTHER}\ud800-\udfff]+")
_MARKS = " :;,.\N{EN DASH}\N{EM DASH}-"
"""What a heading does not end with before its own colon."""


def outline_regex(most: int, concludes: bool) -> str:
    """The grammar of an answer that is an outline of at most so many points.

    Args:
        concludes: Whether anything follows the outline.
    """
    lines = ""
    for number in range(most, 0, -1):
        rest = f"({lines})?" if number > 1 and lines else lines
        # Without a full stop, no point goes on with the next one's number. A limit on its length would be a state for
        # each character, which takes V0's xgrammar too long to compile.
        lines = rf"{number}\. [^ .{_OTHER}][^.{_OTHER}]+\n{rest}"
    return lines + mark_regex(concludes)


def outline_or_other_regex(most: int, concludes: bool) -> str:
    """The grammar of such an outline, or of any answer that does not begin with `BEGINNING`."""
    return rf"({outline_regex(most, concludes)}|([^1]|1[^.]|1\.[^ ]){_ANY}*|1\.?)"


def mark_regex(concludes: bool) -> str:
    """The grammar of what follows an outline."""
    return rf"{TRIGGER}\n\n{_ANY}+" if concludes else TRIGGER


def checked_outline(given: Any, most: int) -> tuple[str, ...]:
    """The points that a caller gives, each as one line, and without numbers that all of them have.

    Raises:
        ValueError: they are none, too many, or no plain text.
    """
    if not isinstance(given, (list, tuple)) or not 1 <= len(given) <= most:
        raise ValueError(f"outline is {abbreviated(given)}; give a list of 1 to {most} points")
    points = [" ".join(point.split()) if isinstance(point, str) else point for point in given]
    for point in points:
        if not isinstance(point, str) or not _OWN.fullmatch(point) or not any(map(str.isalnum, point)):
            raise ValueError(
                f"outline has {abbreviated(point)}; give a text with a letter or digit, and without any of #<>[]| or "
                "half of a surrogate pair"
            )
        if len(point) > MAX_CHARACTERS:
            raise ValueError(f"outline has {abbreviated(point)}; give points of at most {MAX_CHARACTERS} characters")
    numbers = [_NUMBERED.match(point) for point in points]
    if all(each is not None and int(each[1]) == number for number, each in enumerate(numbers, 1)):
        return tuple(_NUMBERED.sub("", point, count=1) for point in points)
    return tuple(points)


def own_points(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The points among a request's arguments; none if what is there is no outline."""
    given = arguments.get(OWN_POINTS)
    if not isinstance(given, (list, tuple)) or not all(isinstance(each, str) and each for each in given):
        return ()
    return tuple(map(label_of, given))


def numbered(points: Sequence[str]) -> str:
    """The text of an outline."""
    return "\n".join(f"{number}. {point}" for number, point in enumerate(points, 1))


def points_in(text: str) -> list[tuple[int, str]] | None:
    """The points of the outline that an answer so far is, whose lines are complete, as numbers and labels.

    A point that says nothing, or the same as an earlier one, is left out. None if the answer is no outline.
    """
    *lines, last = text.partition(TRIGGER)[0].split("\n")
    # Without the mark, the last line may go on.
    found = [_LINE.fullmatch(line.strip()) for line in [*lines, *([last] if TRIGGER in text else [])] if line.strip()]
    if not found and TRIGGER in text:
        return None
    counted = [(int(each[1]), label_of(each[2])) for each in found if each]
    if len(counted) < len(found) or [number for number, _ in counted] != [*range(1, len(found) + 1)]:
        return None
    new: dict[str, tuple[int, str]] = {}
    for number, label in counted:
        said = "".join(filter(str.isalnum, label.casefold()))
        if said:
            new.setdefault(said, (number, label))
    return list(new.values())


def is_complete(text: str, arguments: Mapping[str, Any]) -> bool:
    """Whether an outline has its mark, or as many lines as were asked for, and nothing is to follow its points."""
    asked = _count(arguments, NUM_POINTS)
    num_lines = sum(bool(line.strip()) for line in text.split("\n")[:-1])
    return TRIGGER in text or (bool(arguments.get("end_at_join")) and asked is not None and num_lines >= asked)


def label_of(point: str) -> str:
    """What a point is about."""
    return " ".join(point.split()).rstrip(_MARKS)


def heading(number: int, label: str) -> str:
    """What the expansion of a point begins with."""
    return f"{number}. {label}" if label.endswith(("?", "!")) else f"{number}. {label}:"


def break_after(expansion: str) -> str:
    """What stands between an expansion and the next heading: an empty line, as far as it does not end with one."""
    num_breaks = len(expansion) - len(expansion.rstrip("\n"))
    return "\n\n"[min(2, num_breaks) :]


def expansion_ids(token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Sequence[int]:
    """What an answer has of an expansion: all of its result but the last token if that has the mark which ended it.

    A token may have a mark after some text, and then is a part of the child's result.
    """
    return token_ids[:-1] if token_ids and TRIGGER in decode(token_ids[-1:]) else token_ids


def tokens_per_point(arguments: Mapping[str, Any], num_written: int, num_points: int | None) -> int | None:
    """How many tokens each expansion may have; None if the request says nothing of it.

    It depends on the outline alone, and not on which expansion is written faster.

    Args:
        num_written: The tokens of the outline.
        num_points: Those that it has; None if it is not complete, and may have as many as are asked for.
    """
    total, most, asked = (_count(arguments, name) for name in (ANSWER_TOKENS, POINT_TOKENS, NUM_POINTS))
    if total is None:
        return most
    if num_points is None:
        num_points = asked or 1
        num_written = num_points * TOKENS_PER_LINE
    share = max(1, (total - num_written) // num_points)
    return share if most is None else min(share, most)


def _count(arguments: Mapping[str, Any], name: str) -> int | None:
    value = arguments.get(name)
    return value if type(value) is int and value > 0 else None
