# SPDX-License-Identifier: Apache-2.0
"""How far the tree of one request may grow, and what its caller is told: the engine's limits, or tighter ones.

A request sets its own limits in ``SamplingParams.extra_args`` (``vllm_xargs`` on the server), under the names of the
fields of `Limits`. Other names are ignored, except likely misspellings of ours, which are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, Literal

from sequence_hooks.config.misspellings import near_name
from sequence_hooks.config.special_kwargs import SpecialKwargs
from sequence_hooks.text.messages import abbreviated

_MIN_VALUES = {
    "max_child_depth": 0,
    "max_children": 1,
    "max_tree_tokens": 1,
    "max_tree_sequences": 1,
    "max_running_children": 1,
}
_MAX_NAMES = 100
"""The maximum number of names checked for misspelling: no user types more, and each costs time in the engine's loop."""

LimitName = Literal[
    "max_child_depth", "max_children", "max_tree_sequences", "max_tree_tokens", "max_model_len", "wait_for"
]
"""The limits that a tree may meet: those of `Limits`, the model's length, and ``wait_for``, which may name no child
but those that are unjoined."""

RefusedBy = Literal[LimitName, "malformed", "failed"]
"""What a promise of a tree is refused by: a limit, its own text, or its hook, which has failed."""


@dataclass(frozen=True)
class Limits:
    """The limits of one request's tree; with ``n > 1``, of each sample's tree."""

    hooks: bool
    """If false, hook tokens are ordinary tokens."""

    max_child_depth: int
    max_children: int
    max_tree_tokens: int | None
    """Tokens that the sequences of the tree may sample in total, after which all of them end; None for no limit."""

    max_tree_sequences: int | None = None
    """Sequences that the tree may ever have, its root included; None for no limit."""

    max_running_children: int | None = None
    """Children of the tree, at any depth, that may be admitted at once; None for no limit."""

    stream_children: bool = False
    """If true, the output of each step carries what the request's children have sampled."""

    end_at_join: bool = False
    """If true, the request's own sequence ends where it first gets its children's results."""


def limits_of(special_kwargs: SpecialKwargs, extra_args: Mapping[str, Any] | None) -> Limits:
    """The engine's limits, tightened as the request asks.

    Args:
        extra_args: The field of this name of the request's sampling parameters.

    Raises:
        ValueError: a value is invalid or looser than the engine's, or a name is a misspelling of one of ours.
    """
    limits = Limits(
        not special_kwargs.hooks_on_request, **{name: getattr(special_kwargs, name) for name in _MIN_VALUES}
    )
    given = extra_args or {}
    _check_names(given)
    for name in ("hooks", "stream_children", "end_at_join"):
        if name in given:
            limits = replace(limits, **{name: _check_switch(name, given[name])})
    for name in _MIN_VALUES:
        if name in given:
            limits = replace(limits, **{name: _check_limit(name, given[name], getattr(limits, name))})  # type: ignore[arg-type]
    return limits


def max_tokens_alone(special_kwargs: SpecialKwargs, params: Any) -> int | None:
    """The most tokens that a request may sample before it has a tree; None for no limit.

    Args:
        params: Its sampling parameters.
    """
    limits = limits_of(special_kwargs, params.extra_args)
    of_tree = limits.max_tree_tokens if limits.hooks else None
    return min((each for each in (params.max_tokens, of_tree) if each is not None), default=None)


def _check_names(given: Mapping[str, Any]) -> None:
    ours = [field.name for field in fields(Limits)]
    for name in islice(given, _MAX_NAMES):
        if meant := near_name(str(name), ours):
            raise ValueError(
                f"extra_args: {abbreviated(name)} is not a field, but similar to {meant!r}; write {meant!r}, or give "
                "an argument of your own another name"
            )


def _check_switch(name: str, value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError(f"extra_args: {name} is {abbreviated(value)}; use True or False, or leave it out")
    return bool(value)


def _check_limit(name: str, value: Any, most: int | None) -> int:
    least = _MIN_VALUES[name]
    if type(value) is not int or value < least:
        raise ValueError(f"extra_args: {name} is {abbreviated(value)}; use an integer of at least {least}")
    if most is not None and value > most:
        raise ValueError(f"extra_args: {name} is {abbreviated(value)}; the engine allows at most {most}")
    return value
