# SPDX-License-Identifier: Apache-2.0
"""A block of numbered plans whose closing tag fans out one child per plan."""

from collections.abc import Sequence
from dataclasses import dataclass

from sequence_hooks.handlers import Actions, Merged, Piece, Spawn, TokenEvent
from sequence_hooks.results import ChildOutput
from vllm.transformers_utils.tokenizer import AnyTokenizer


@dataclass(frozen=True)
class Tags:
    """The tags of a notation; each is one token."""

    opens_plans: str
    plan: str
    closes_plans: str
    """Its token is the hook."""

    opens_child: str
    closes_child: str
    concludes: str
    """The tag with which the parent continues after the join."""


class FanOut:
    """A handler for the tag that closes a block of plans. A block without plans is ignored."""

    def __init__(self, tokenizer: AnyTokenizer, tags: Tags) -> None:
        self._tokenizer = tokenizer
        self._tags = tags
        self._opens, self._plan = (self._encode(tag)[0] for tag in (tags.opens_plans, tags.plan))
        self._child_params = {"stop_token_ids": list(self._encode(tags.closes_child))}

    def on_token(self, event: TokenEvent) -> Actions:
        num_plans = self._num_plans([*event.prompt_token_ids, *event.output_token_ids], event.token_id)
        prefixes = (self._encode(f"{self._tags.opens_child}{number}:") for number in range(1, num_plans + 1))
        children = tuple(Spawn(prefix, self._child_params) for prefix in prefixes)
        return Actions(children, block=bool(children))

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        """Each child's whole text, its own tags and number included, then the tag of the conclusion."""
        merged: list[Piece] = []
        for child in children:
            merged += [*child.prefix_token_ids, child, self._tags.closes_child]
        return [*merged, self._tags.concludes]

    def _num_plans(self, context: list[int], closing: int) -> int:
        """Plans in the block that is open at the end of ``context``; 0 if none is open."""
        for length, token in enumerate(reversed(context)):
            if token == closing:
                return 0
            if token == self._opens:
                return context[len(context) - length :].count(self._plan)
        return 0

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))
