# SPDX-License-Identifier: Apache-2.0
"""How far the tree of one request may grow, and what is told of it: as the engine says, or the request itself.

A request sets its own by `SamplingParams.extra_args` (on the server ``vllm_xargs``), under the names of the
fields here. Other names are somebody else's, unless they are so near that one of ours was meant.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

from vllm.hooks.config import SpecialKwargs
from vllm.hooks.near_names import near_name
from vllm.hooks.shown import shortened
from vllm.sampling_params import SamplingParams

_LEAST = {"max_child_depth": 0, "max_children": 1, "max_tree_tokens": 0}
_MOST_NAMES = 100
"""That are looked at: more of them nobody has typed, and each takes time of the engine's loop."""


@dataclass(frozen=True)
class Limits:
    """Of one request's tree; with ``n > 1`` of each sample's."""

    hooks: bool
    """False: hook tokens are ordinary ones."""

    max_child_depth: int
    max_children: int
    max_tree_tokens: int | None
    """Tokens sampled by all sequences together, past which nothing is spawned; None for no limit."""

    stream_children: bool = False
    """True: each step's output has what the request's children have sampled; see `vllm.outputs.RequestOutput`."""


def limits_of(special_kwargs: SpecialKwargs, params: SamplingParams) -> Limits:
    """The engine's limits, as tight as the request wants them.

    Raises:
        ValueError: the request has a value that is none, or would be looser than the engine's, or a name that is
            nearly one of ours.
    """
    limits = Limits(True, special_kwargs.max_child_depth, special_kwargs.max_children, special_kwargs.max_tree_tokens)
    given = params.extra_args or {}
    _check_names(given)
    for name in ("hooks", "stream_children"):
        if name in given:
            limits = replace(limits, **{name: _check_switch(name, given[name])})
    for name in _LEAST:
        if name in given:
            limits = replace(limits, **{name: _check_limit(name, given[name], getattr(limits, name))})  # type: ignore[arg-type]
    return limits


def _check_names(given: Mapping[str, Any]) -> None:
    ours = [field.name for field in fields(Limits)]
    for name in islice(given, _MOST_NAMES):
        if meant := near_name(str(name), ours):
            raise ValueError(
                f"extra_args: {shortened(name)} is not a field, and nearly {meant!r}; write {meant!r}, or give an "
                "argument of your own another name"
            )


def _check_switch(name: str, value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError(f"extra_args: {name} is {shortened(value)}; use True or False, or leave it out")
    return bool(value)


def _check_limit(name: str, value: Any, most: int | None) -> int:
    least = _LEAST[name]
    if type(value) is not int or value < least:
        raise ValueError(f"extra_args: {name} is {shortened(value)}; use an integer from {least} up")
    if most is not None and value > most:
        raise ValueError(f"extra_args: {name} is {shortened(value)}; the engine allows {most} at most")
    return value
