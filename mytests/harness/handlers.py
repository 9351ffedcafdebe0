# SPDX-License-Identifier: Apache-2.0
"""Handlers that a user could have written, for tests of what becomes of their tokens."""

import dataclasses
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from mytests.harness.surgical import SYNC_HOOKS, CharTokenizer, SpecialKwargs
from sequence_hooks.handlers import Actions, Merged, Spawn, TokenEvent
from sequence_hooks.results import ChildOutput

FORK = ord("*")


class Fork:
    """Spawns a child for each digit since the last fork, and reports how many came back."""

    def __init__(self, tokenizer: CharTokenizer) -> None:
        self._prefix = tuple(tokenizer.encode("#", add_special_tokens=False))

    def on_token(self, event: TokenEvent) -> Actions:
        digits = [token for token in event.output_token_ids if chr(token).isdigit()]
        children = [Spawn((*self._prefix, digit), {"max_tokens": digit - ord("0")}) for digit in digits]
        return Actions(tuple(children), block=True)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return [f"{len(children)}:", *children]


class Always(Fork):
    """Does the same at each of its tokens."""

    actions = Actions()

    def on_token(self, event: TokenEvent) -> Actions:
        return self.actions


class Closing(Always):
    """Spawns two children, whose results it closes, and goes on with a text of its own."""

    actions = Actions((Spawn(), Spawn()))

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return [piece for child in children for piece in (child, "|")] + [",."]


class Failing(Fork):
    """A handler that raises."""

    def on_token(self, event: TokenEvent) -> Actions:
        raise RuntimeError("broken")


class Prefixed(Fork):
    """Gives its child the prefix that a test sets."""

    prefix: tuple[int, ...] = ()

    def on_token(self, event: TokenEvent) -> Actions:
        return Actions((Spawn(self.prefix),))


def make_nothing(tokenizer: CharTokenizer) -> None:
    """A factory that returns no handler."""


def needs_two(one: object, two: object) -> None:
    """A factory that cannot be called with the tokenizer alone."""


def hooks_with(**fields: Any) -> SpecialKwargs:
    """Hooks that block at the sync token, with ``fields`` replaced."""
    return dataclasses.replace(SYNC_HOOKS, **fields)


def own(name: str) -> str:
    return f"{__name__}.{name}"


class Seeing(Fork):
    """Records the events that it was shown."""

    events: list[TokenEvent] = []

    def on_token(self, event: TokenEvent) -> Actions:
        self.events.append(event)
        return Actions()


class Wait(Always):
    """Waits for a caller, and spawns nothing."""

    actions = Actions(await_resume=True)


class Pair(Always):
    """Spawns two detached children, whose results are put in brackets, and one that its parent waits for."""

    actions = Actions((Spawn((1,), is_detached=True), Spawn((2,), is_detached=True), Spawn((3,))), block=True)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return ["(", *children, ")"]


class Apart(Pair):
    """Spawns one detached child."""

    actions = Actions((Spawn((1,), is_detached=True),))

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return list(children)


class Beside(Pair):
    """Spawns a detached child that has nothing of its parent, and one that its parent waits for."""

    actions = Actions((Spawn((1,), None, "none", is_detached=True), Spawn((2,))), block=True)


class Named(Fork):
    """Waits for the children that the digits before it name."""

    more: dict[str, Any] = {"block": True}

    def on_token(self, event: TokenEvent) -> Actions:
        return Actions(wait_for=numbers_before(event), **self.more)


class NamedFirst(Named):
    """Waits for the first of them."""

    more = {"block": True, "join_when": 1}


class NamedByCaller(Named):
    """Waits for a caller, too."""

    more = {"await_resume": True}


class Some(Fork):
    """Goes on when as many children have a result as the digit before it says."""

    def on_token(self, event: TokenEvent) -> Actions:
        return Actions(block=True, join_when=event.output_token_ids[-1] - ord("0"))


def numbers_before(event: TokenEvent) -> list[int]:
    """The digits just before a token, in the order in which they stand there."""
    before = takewhile(lambda token: chr(token).isdigit(), reversed(event.output_token_ids))
    return [token - ord("0") for token in before][::-1]


class Malformed(Fork):
    """Finds what its token completes malformed, and raises when it is asked again."""

    def on_token(self, event: TokenEvent) -> Actions:
        if event.token_id in event.output_token_ids:
            raise RuntimeError("broken")
        return Actions(is_malformed=True)
