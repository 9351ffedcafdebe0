# SPDX-License-Identifier: Apache-2.0
"""Where trees fork and join, whatever the model samples."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import count
from sys import maxsize
from typing import Any

from sequence_hooks.handlers import Actions, Merged, Spawn, TokenEvent, TokenHandler
from sequence_hooks.handlers.builtin import concatenate
from sequence_hooks.handlers.triggers import TriggerMatch, Triggers
from sequence_hooks.tree.ids import root_id

GO_ON = Actions()
JOIN = Actions(block=True)


@dataclass(frozen=True)
class Script:
    """What a request's tree does.

    Attributes:
        acts: What happens at an output token, by its sequence's depth and its position, from 1. Merged tokens count.
        num_sampled: Tokens that the request itself samples.
    """

    acts: Mapping[tuple[int, int], Actions]
    num_sampled: int


def fork(lengths: Sequence[int], block: bool = False) -> Actions:
    """Spawn a child for each of ``lengths``: the number of tokens that it samples. Each has a prefix of its own."""
    children = (Spawn((number,), {"max_tokens": length}) for number, length in enumerate(lengths, 1))
    return Actions(tuple(children), block=block)


FORK_AT = 6
"""The tokens that a request of the script ``fork`` samples before and at its fork."""

SCRIPTS = {
    "plain": Script({}, 24),
    "fork": Script({(0, FORK_AT): fork([9, 14]), (0, 14): JOIN}, 24),
    "nested": Script({(0, 5): fork([10, 12], block=True), (1, 4): fork([7, 5], block=True)}, 14),
    "again": Script({(0, 4): fork([6, 9], block=True), (0, 4 + 15 + 5): fork([8], block=True)}, 16),
}
"""By name. A request is named after its script: ``fork.3`` follows the script ``fork``."""

MAX_TOKENS = 24 + 2 * (12 + 12)
"""Tokens that a context grows by, at most."""


def script_of(request_id: str) -> Script:
    """The script that a sequence follows, by any of its names."""
    return SCRIPTS[root_id(request_id).partition(".")[0]]


class Scripted:
    """The handler of all tokens: it follows the request's script, and merges results without a separator.

    Args:
        tokenizer: Not needed.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._join = concatenate("")

    def on_token(self, event: TokenEvent) -> Actions:
        position = len(event.output_token_ids) + 1
        return script_of(event.request_id).acts.get((event.depth, position), GO_ON)

    def join(self, children: Any) -> Merged:
        return self._join(children)


class EveryToken(Triggers):
    """The hook of one token, which every token fires."""

    def __init__(self, handler: TokenHandler) -> None:
        super().__init__({}, None)
        self._handler = handler
        self.candidates = _Everything()

    def match(self, token_id: int, context: Sequence[int], num_sampled: int) -> TriggerMatch:
        return TriggerMatch(self._handler, 1)


class _Everything(AbstractSet[int]):
    """All token ids there may be."""

    def __contains__(self, token_id: object) -> bool:
        return True

    def __iter__(self) -> Iterator[int]:
        return count()

    def __len__(self) -> int:
        return maxsize
