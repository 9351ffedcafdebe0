# SPDX-License-Identifier: Apache-2.0
"""How far the tree of one request may grow, and what its caller is told: the engine's limits, or tighter ones.

A request sets its own limits in ``SamplingParams.extra_args`` (``vllm_xargs`` on the server), under the names of the
fields of `Limits`. Other names are ignored, except likely misspellings of ours, which are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from sequence_hooks.config.field_rules import least_of
from sequence_hooks.config.misspellings import misspelled
from sequence_hooks.config.special_kwargs import SpecialKwargs, TreeLimits
from sequence_hooks.text.messages import abbreviated

_FLAT = (
    "with sequence hooks they belong to the sequences of a tree, and as one row they are those of no context. Read "
    "them by sequence_hooks.training.token_trees and say so by reads_trees=1 in extra_args (vllm_xargs on the server)"
)

LimitName = Literal[
    "max_child_depth", "max_children", "max_tree_sequences", "max_tree_tokens", "max_model_len", "wait_for"
]
"""The limits that a tree may meet: those of `Limits`, the model's length, and ``wait_for``, which may name unjoined
children only."""

RefusedBy = Literal[LimitName, "malformed", "failed"]
"""Why a promise of a tree is refused: a limit forbids it, its text is malformed, or its hook has failed."""


@dataclass(frozen=True)
class Limits(TreeLimits):
    """The limits of one request's tree, and what its caller asks for."""

    hooks: bool = True
    """If false, hook tokens are ordinary tokens."""

    stream_children: bool = False
    """If true, the output of each step carries what the request's children have sampled."""

    end_at_join: bool = False
    """If true, the request's own sequence ends where it first gets its children's results."""

    reads_trees: bool = False
    """Whether its caller takes log-probabilities from the tree, see `SpecialKwargs.flat_logprobs`."""

    continues: int | None = None
    """How many of the last tokens of its prompt are an answer that was cut off; None if it does not say so. See
    `sequence_hooks.config.cut_off`."""


_NAMES = [field.name for field in fields(Limits)]
_LIMITS = {field.name: least_of(field) for field in fields(TreeLimits)}
"""The least value of each limit."""


def limits_of(special_kwargs: SpecialKwargs, extra_args: Mapping[str, Any] | None) -> Limits:
    """The engine's limits, tightened as the request asks.

    Args:
        extra_args: The field of this name of the request's sampling parameters.

    Raises:
        ValueError: a value is invalid or looser than the engine's, or a name is a misspelling of one of ours.
    """
    given = extra_args or {}
    if reason := misspelled(given, _NAMES, "an argument"):
        raise ValueError(f"extra_args: {reason}")
    values: dict[str, Any] = {name: getattr(special_kwargs, name) for name in _LIMITS}
    values |= {name: _check_limit(name, given[name], values[name]) for name in _LIMITS if name in given}
    if "continues" in given:
        values["continues"] = _check_count("continues", given["continues"], 0)
    switches = (field.name for field in fields(Limits) if field.name not in (*_LIMITS, "continues"))
    values |= {name: _check_switch(name, given[name]) for name in switches if name in given}
    return Limits(**{"hooks": not special_kwargs.hooks_on_request, **values})


def flat_reading(special_kwargs: SpecialKwargs, limits: Limits, num_logprobs: int | None) -> str | None:
    """A warning for a caller that may read a tree's log-probabilities as one row; None if there is nothing to say.

    Args:
        num_logprobs: How many the request asks for; None if it asks for none.

    Raises:
        ValueError: `SpecialKwargs.flat_logprobs` is "refuse".
    """
    if num_logprobs is None or not limits.hooks or limits.reads_trees or special_kwargs.flat_logprobs == "allow":
        return None
    if special_kwargs.flat_logprobs == "refuse":
        raise ValueError(f"logprobs is {num_logprobs}: {_FLAT}, or leave logprobs out")
    return f"A request asks for logprobs: {_FLAT}, or set flat_logprobs to 'allow'"


def max_tokens_without_tree(special_kwargs: SpecialKwargs, params: Any) -> int | None:
    """The most tokens that a request may sample before it has a tree; None for no limit.

    Args:
        params: Its sampling parameters.
    """
    limits = limits_of(special_kwargs, params.extra_args)
    of_tree = limits.max_tree_tokens if limits.hooks else None
    return min((each for each in (params.max_tokens, of_tree) if each is not None), default=None)


def _check_switch(name: str, value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError(f"extra_args: {name} is {abbreviated(value)}; use True or False, or leave it out")
    return bool(value)


def _check_count(name: str, value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"extra_args: {name} is {abbreviated(value)}; use an integer of at least {least}")
    return value


def _check_limit(name: str, value: Any, most: int | None) -> int:
    count = _check_count(name, value, _LIMITS[name])
    if most is not None and count > most:
        raise ValueError(f"extra_args: {name} is {abbreviated(count)}; the engine allows at most {most}")
    return count
