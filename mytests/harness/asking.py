# SPDX-License-Identifier: Apache-2.0
"""Handlers that ask for whatever a test says, and what the rules make of it."""

from collections.abc import Sequence
from typing import Any

from mytests.harness.plain import LIMITS, PROMISE, PlainSequence, Trees, child_of, handler
from sequence_hooks.config.limits import Limits
from sequence_hooks.handlers import Actions, Merged, TokenEvent, TokenHandler
from sequence_hooks.handlers.triggers import TriggerMatch
from sequence_hooks.results import ChildOutput
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.rules import Decision, Refusal, decide


class Asks:
    """A handler that asks for whatever a test says."""

    def __init__(self, actions: Any, joined: Any = ()) -> None:
        self._actions, self._joined = actions, joined

    def on_token(self, event: TokenEvent) -> Actions:
        if isinstance(self._actions, BaseException):
            raise self._actions
        actions: Actions = self._actions
        return actions

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        if isinstance(self._joined, BaseException):
            raise self._joined
        joined: Merged = self._joined
        return joined


def branch_with(
    depth: int = 0, num_children: int = 0, num_sampled: int = 0, limits: Limits = LIMITS
) -> Branch[PlainSequence]:
    """A sequence with two tokens of prompt, about to sample a hook token."""
    trees = Trees()
    branch = trees.add_root(PlainSequence(), limits)
    for _ in range(depth):
        branch = child_of(trees, branch, handler())
    branch.sequence.output_token_ids += [20] * num_sampled
    for _ in range(num_children):
        child_of(trees, branch, handler())
    return branch


def decided(
    asks: TokenHandler,
    branch: Branch[PlainSequence] | None = None,
    room: int = 9,
    vocab_size: int | None = 100,
    num_trigger: int = 1,
) -> Decision | Refusal:
    """What it does, with room for nine tokens after the hook token, in a vocabulary of 100."""
    branch = branch or branch_with()
    output = branch.sequence.output_token_ids
    max_len = len(branch.sequence.prompt_token_ids) + len(output) + 1 + room
    return decide(branch, PROMISE, TriggerMatch(asks, num_trigger), output, max_len, vocab_size)
