# SPDX-License-Identifier: Apache-2.0
"""Copies what a handler returned to plain values, so that none of its code runs once its token is decided."""

import operator
from collections.abc import Mapping
from itertools import islice
from typing import Any

from sequence_hooks.handlers import Actions, Spawn
from sequence_hooks.text.messages import abbreviated


def plain_actions(
    given: Any, most_children: int, most_prefix: int, most_inserted: int, num_unjoined: int = 0
) -> Actions:
    """A copy of ``given``. Reads at most one child, and one prefix token, inserted token and number more than allowed.

    Args:
        num_unjoined: How many children it could wait for, beside those that it spawns.

    Raises:
        TypeError, ValueError: ``given`` is not what a handler has to return.
        BaseException: whatever user-defined iterators and attributes raise.
    """
    if not isinstance(given, Actions):
        raise TypeError(f"on_token returned {abbreviated(given)}; return Actions")
    spawn = tuple(_plain_spawn(each, most_prefix) for each in islice(given.spawn, most_children + 1))
    block, await_resume = bool(given.block), bool(given.await_resume)
    start, inserted = given.replace_from, _plain_ids(given.insert_token_ids, most_inserted)
    if start is not None:
        start = _plain_index(start)
    if not (block or await_resume) and (start is not None or inserted):
        name, value = ("insert_token_ids", inserted) if start is None else ("replace_from", start)
        raise ValueError(
            f"Actions.{name} is {abbreviated(value)}, and the sequence is not BLOCKED, so nothing is joined; "
            "set block or await_resume"
        )
    if start is not None and given.wait_for is not None:
        raise ValueError(
            f"Actions.wait_for is {abbreviated(given.wait_for)}, and replace_from {start}: siblings that run on have "
            "seen what is replaced; leave one of them out"
        )
    numbers = _plain_numbers(given.wait_for, num_unjoined + len(spawn))
    join_when = None if given.join_when is None else _plain_integer(given.join_when, "join_when")
    if join_when is not None and join_when < 1:
        raise ValueError(f"Actions.join_when is {join_when}; give an integer of at least 1, or None to wait for all")
    for field, asked in (("wait_for", numbers), ("join_when", join_when)):
        if asked is not None and not (block or await_resume):
            raise ValueError(f"Actions.{field} is {abbreviated(asked)}, and nothing waits; set block=True")
    return Actions(spawn, block, await_resume, bool(given.is_malformed), start, inserted, numbers, join_when)


def as_token_id(value: Any) -> int:
    """``value``, an integer of any type (for example numpy's), as an ``int``.

    Raises:
        TypeError: ``value`` is not an integer; True and False are not integers here.
    """
    if isinstance(value, bool):
        raise TypeError(f"{value} is not a token id")
    return operator.index(value)


def _plain_integer(value: Any, name: str) -> int:
    if isinstance(value, bool):
        raise TypeError(f"Actions.{name} has {value}; give integers")
    return operator.index(value)


def _plain_numbers(given: Any, most: int) -> tuple[int, ...] | None:
    """The numbers of children in ascending order, each once."""
    if given is None:
        return None
    return tuple(sorted({_plain_integer(each, "wait_for") for each in islice(given, most + 1)}))


def _plain_spawn(given: Any, most_prefix: int) -> Spawn:
    if not isinstance(given, Spawn):
        raise TypeError(f"Actions.spawn has {abbreviated(given)}; give Spawn objects")
    prefix, params = given.prefix_token_ids, given.sampling_params
    is_mapping = isinstance(params, Mapping)
    has_plain_ids = type(prefix) is tuple and {type(token_id) for token_id in prefix} <= {int}
    if type(given) is Spawn and has_plain_ids and (type(params) is dict or not is_mapping):
        return given
    prefix = _plain_ids(prefix, most_prefix)
    params = dict(params) if is_mapping else params
    return Spawn(prefix, params, given.context, bool(given.is_detached), given.label)


def _plain_ids(given: Any, most: int) -> tuple[int, ...]:
    """At most one id more than ``most``."""
    return tuple(as_token_id(token_id) for token_id in islice(given, max(most, 0) + 1))


def _plain_index(value: Any) -> int:
    try:
        return as_token_id(value)
    except TypeError:
        raise TypeError(
            f"Actions.replace_from is {abbreviated(value)}; give an index of the event's output_token_ids, or None"
        ) from None
