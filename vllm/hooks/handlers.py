# SPDX-License-Identifier: Apache-2.0
"""What a hook token asks for: a handler is asked when its token is sampled, and answers with actions."""

from dataclasses import dataclass
from typing import Protocol

from vllm.hooks.branch import Branch
from vllm.hooks.config import SpecialKwargs


@dataclass(frozen=True)
class Actions:
    """What is done once the token is processed, unless it ended its sequence."""

    num_children: int = 0
    block: bool = False


NOTHING = Actions()


class TokenHandler(Protocol):
    """Decides for one token. Changes nothing itself."""

    def on_token(self, branch: Branch) -> Actions:
        """The actions for the handler's token, which ``branch`` has just sampled."""


class PromiseHandler:
    """Spawns a child, unless the limits of depth or fan-out are reached."""

    def __init__(self, special_kwargs: SpecialKwargs) -> None:
        self._limits = special_kwargs

    def on_token(self, branch: Branch) -> Actions:
        if branch.depth >= self._limits.max_child_depth:
            return NOTHING
        if branch.num_unfinished_children >= self._limits.max_children:
            return NOTHING
        return Actions(num_children=1, block=self._limits.block_on == "promise")


class SyncHandler:
    """Blocks its sequence; with nothing to wait for, it resumes at the next step."""

    def on_token(self, branch: Branch) -> Actions:
        return Actions(block=True)


def make_handlers(special_kwargs: SpecialKwargs) -> dict[int, TokenHandler]:
    """The handlers by token id."""
    handlers: dict[int, TokenHandler] = {}
    if special_kwargs.promise_token_id is not None:
        handlers[special_kwargs.promise_token_id] = PromiseHandler(special_kwargs)
    if special_kwargs.sync_token_id is not None:
        handlers[special_kwargs.sync_token_id] = SyncHandler()
    return handlers
