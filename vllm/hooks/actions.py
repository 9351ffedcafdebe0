# SPDX-License-Identifier: Apache-2.0
"""What a handler returned, as plain values: nothing of its code runs once its token is processed."""

from dataclasses import dataclass
from itertools import islice
from typing import Any

from vllm.hooks.branch import Branch
from vllm.hooks.handlers import Actions, Spawn, TokenHandler
from vllm.hooks.merge import as_token_id
from vllm.hooks.shown import shortened
from vllm.sampling_params import SamplingParams


@dataclass(frozen=True)
class Decision:
    """What a handler asks for, ready to be carried out."""

    token_id: int
    handler: TokenHandler
    actions: Actions
    child_params: tuple[SamplingParams, ...]
    """One for each of ``actions.spawn``."""


def plain_actions(given: Any, most_children: int, most_prefix: int) -> Actions:
    """A copy of ``given``, of which children and prefixes are read to one past what is allowed.

    Raises:
        TypeError: it is not what a handler has to return.
        BaseException: whatever a user's iterators and attributes raise.
    """
    if not isinstance(given, Actions):
        raise TypeError(f"on_token returned {shortened(given)}; return Actions")
    spawn = tuple(_plain_spawn(each, most_prefix) for each in islice(given.spawn, most_children + 1))
    return Actions(spawn, bool(given.block), bool(given.await_resume))


def is_within_limits(actions: Actions, branch: Branch) -> bool:
    """Whether the limits of its tree let a sequence spawn all of the children."""
    limits = branch.limits
    if branch.depth >= limits.max_child_depth:
        return False
    if branch.num_unfinished_children + len(actions.spawn) > limits.max_children:
        return False
    return limits.max_tree_tokens is None or branch.num_sampled_in_tree < limits.max_tree_tokens


def _plain_spawn(given: Any, most_prefix: int) -> Spawn:
    if not isinstance(given, Spawn):
        raise TypeError(f"Actions.spawn has {shortened(given)}; give Spawn objects")
    prefix = given.prefix_token_ids
    if type(given) is Spawn and type(prefix) is tuple and {type(token_id) for token_id in prefix} <= {int}:
        return given
    prefix = tuple(as_token_id(token_id) for token_id in islice(prefix, max(most_prefix, 0) + 1))
    return Spawn(prefix, given.sampling_params)
