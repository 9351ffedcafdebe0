# SPDX-License-Identifier: Apache-2.0
"""Copies what a handler returned to plain values, so that none of its code runs once its token is decided."""

import operator
from collections.abc import Mapping
from itertools import islice
from typing import Any

from sequence_hooks.config.messages import abbreviated
from sequence_hooks.handlers import Actions, Spawn


def plain_actions(given: Any, most_children: int, most_prefix: int) -> Actions:
    """A copy of ``given``. Reads at most one child and one prefix token more than allowed.

    Raises:
        TypeError: ``given`` is not what a handler has to return.
        BaseException: whatever user-defined iterators and attributes raise.
    """
    if not isinstance(given, Actions):
        raise TypeError(f"on_token returned {abbreviated(given)}; return Actions")
    spawn = tuple(_plain_spawn(each, most_prefix) for each in islice(given.spawn, most_children + 1))
    return Actions(spawn, bool(given.block), bool(given.await_resume), bool(given.is_malformed))


def as_token_id(value: Any) -> int:
    """``value``, an integer of any type (for example numpy's), as an ``int``.

    Raises:
        TypeError: ``value`` is not an integer; True and False are not integers here.
    """
    if isinstance(value, bool):
        raise TypeError(f"{value} is not a token id")
    return operator.index(value)


def _plain_spawn(given: Any, most_prefix: int) -> Spawn:
    if not isinstance(given, Spawn):
        raise TypeError(f"Actions.spawn has {abbreviated(given)}; give Spawn objects")
    prefix, params = given.prefix_token_ids, given.sampling_params
    is_mapping = isinstance(params, Mapping)
    has_plain_ids = type(prefix) is tuple and {type(token_id) for token_id in prefix} <= {int}
    if type(given) is Spawn and has_plain_ids and (type(params) is dict or not is_mapping):
        return given
    prefix = tuple(as_token_id(token_id) for token_id in islice(prefix, max(most_prefix, 0) + 1))
    return Spawn(prefix, dict(params) if is_mapping else params, given.context, bool(given.is_detached))
