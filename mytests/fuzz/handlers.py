# SPDX-License-Identifier: Apache-2.0
"""Handlers of random trees on any engine: they wait for one child by its number, or replace the end of a context."""

from collections.abc import Sequence
from typing import Any

from sequence_hooks.handlers import Actions, Merged, TokenEvent
from sequence_hooks.results import ChildOutput

OLDEST, NEWEST, REPLACE = ord("o"), ord("n"), ord("y")
UNKNOWN = 1_000_000


class Oldest:
    """Waits for the first unjoined child; if there is none, for one that nobody has."""

    place = 0

    def __init__(self, tokenizer: Any) -> None: ...

    def on_token(self, event: TokenEvent) -> Actions:
        numbers = [child.number for child in event.unjoined] or [UNKNOWN]
        return Actions(block=True, wait_for=(numbers[self.place],))

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return ()


class Newest(Oldest):
    """Waits for the last one."""

    place = -1


class ReplacesWords(Oldest):
    """Waits for its sequence's children, and replaces the end of its context by words of the fuzzer."""

    words: tuple[int, ...] = (7, 8)

    def on_token(self, event: TokenEvent) -> Actions:
        start, new = replacement_of(len(event.output_token_ids), self.words)
        return Actions(block=True, replace_from=start, insert_token_ids=new)


class ReplacesLetters(ReplacesWords):
    """The same by letters, of the walks."""

    words = (REPLACE, REPLACE)


def replacement_of(num_before: int, words: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """From where on a context is cut if it has so many tokens before the one that replaces, and what is inserted: all
    of it, or a part, or that token alone; and nothing, or a few of the ``words``."""
    return num_before * (num_before % 4) // 3, words[: num_before % 3]


def named(unjoined: Sequence[Any], place: str) -> list[Any]:
    """Which of these children a handler waits for, by the name of its class; none if there are none."""
    return list(unjoined[:1] if place == Oldest.__name__ else unjoined[-1:])


def handler(place: str) -> str:
    """The qualified name of a handler, by that of its class."""
    return f"{__name__}.{place}"


HANDLERS: dict[int | str, str] = {OLDEST: handler(Oldest.__name__), NEWEST: handler(Newest.__name__)}
REPLACING = {REPLACE: handler(ReplacesLetters.__name__)}
"""Without them the token is an ordinary one."""
