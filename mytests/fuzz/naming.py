# SPDX-License-Identifier: Apache-2.0
"""Tokens that wait for one child by its number, for random trees on any engine."""

from collections.abc import Sequence
from typing import Any

from sequence_hooks.handlers import Actions, Merged, TokenEvent
from sequence_hooks.results import ChildOutput

OLDEST, NEWEST = ord("o"), ord("n")
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


def named(unjoined: Sequence[Any], place: str) -> list[Any]:
    """Which of these children a handler waits for, by the name of its class; none if there are none."""
    return list(unjoined[:1] if place == Oldest.__name__ else unjoined[-1:])


def handler(place: str) -> str:
    """The qualified name of a handler, by that of its class."""
    return f"{__name__}.{place}"


HANDLERS: dict[int | str, str] = {OLDEST: handler(Oldest.__name__), NEWEST: handler(Newest.__name__)}
