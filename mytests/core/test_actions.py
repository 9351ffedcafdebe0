# SPDX-License-Identifier: Apache-2.0
"""What a handler returned, as plain values."""

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest

from sequence_hooks.handlers import Actions, Spawn
from sequence_hooks.handlers.actions import plain_actions


class Own(Spawn):
    """A user-defined subclass."""


class Counted:
    """Endless values, and how many of them were read."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.num_read = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.num_read += 1
            yield self.value


def spawned(spawn: Any, most_prefix: int = 8) -> Spawn:
    """The plain form of the one child that is spawned."""
    (plain,) = plain_actions(Actions((spawn,)), 1, most_prefix, 8).spawn
    return plain


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a list"], "on_token returned ['a list']; return Actions"),
        (Actions((7,)), "Actions.spawn has 7; give Spawn objects"),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_actions_is_refused(given: Any, message: str) -> None:
    """The error shows what was returned, and the way out."""
    with pytest.raises(TypeError, match=re.escape(message)):
        plain_actions(given, 1, 8, 8)


@pytest.mark.parametrize("prefix", [(), (3,), (3, 4)])
def test_a_plain_child_is_not_copied(prefix: tuple[int, ...]) -> None:
    """Its prefix is a tuple of ints already."""
    spawn = Spawn(prefix, {"max_tokens": 3})
    assert spawned(spawn) is spawn


@pytest.mark.parametrize("spawn", [Spawn([3, 4], {"max_tokens": 3}), Own((3, 4), {"max_tokens": 3})])  # type: ignore[arg-type]
def test_any_other_child_becomes_a_plain_one(spawn: Spawn) -> None:
    """It keeps its prefix and its sampling parameters."""
    plain = spawned(spawn)
    assert (type(plain), plain) == (Spawn, Spawn((3, 4), {"max_tokens": 3}))


def test_parameters_are_copied_unless_they_are_a_dict() -> None:
    """So that a handler's own mapping is not read once its token is decided."""
    params = spawned(Spawn((3,), MappingProxyType({"max_tokens": 3}))).sampling_params
    assert (type(params), params) == (dict, {"max_tokens": 3})


@pytest.mark.parametrize(("most", "num_read"), [(-1, 1), (0, 1), (1, 2), (5, 6)])
def test_a_prefix_is_read_up_to_one_more_than_there_is_room_for(most: int, num_read: int) -> None:
    """So that one that is too long is noticed, and an endless one ends nothing."""
    assert len(spawned(Spawn(prefix := Counted(3)), most).prefix_token_ids) == num_read  # type: ignore[arg-type]
    assert prefix.num_read == num_read


@pytest.mark.parametrize("label", [7, "x" * 257])
def test_a_label_is_a_short_text(label: Any) -> None:
    """Or the handler has made a mistake, which is told by name."""
    with pytest.raises(ValueError, match=r"label is .* give a string of at most 256 characters"):
        Spawn((3,), label=label)
