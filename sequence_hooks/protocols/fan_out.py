# SPDX-License-Identifier: Apache-2.0
"""A block of numbered plans whose closing tag fans out one child for each plan."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sequence_hooks.handlers import Actions, Merged, Piece, PrefixOf, Spawn, TokenEvent
from sequence_hooks.protocols.tags import closing, ending_with, text_since
from sequence_hooks.results import ChildOutput
from sequence_hooks.text.encoding import Tokenizer, prefix_ids_of


@dataclass(frozen=True)
class Tags:
    """The tags of a notation."""

    opens_plans: str
    plan: str
    """Followed by a number such as ``2`` or ``1.2``, and a colon."""

    closes_plans: str
    """The trigger."""

    opens_child: str
    closes_child: str
    before_closing: str = ""
    """Stands before the closing tag of a child that has not sampled it."""

    @property
    def all(self) -> tuple[str, ...]:
        return self.opens_plans, self.plan, self.closes_plans, self.opens_child, self.closes_child


class FanOut:
    """A handler for the tag that closes a block of plans. A block without plans is malformed.

    Args:
        after: Follows the last child's closing tag; the parent continues after it.
    """

    def __init__(self, tokenizer: Tokenizer, tags: Tags, after: str) -> None:
        self._tokenizer = tokenizer
        self._tags = tags
        self._after = after
        self._child_params = ending_with(tags.closes_child, tokenizer)
        self._plan = re.compile(re.escape(tags.plan) + r"\s*([0-9]+(?:\.[0-9]+)*)\s*:")

    def on_token(self, event: TokenEvent) -> Actions:
        block = self._block([*event.prompt_token_ids, *event.output_token_ids, event.token_id])
        numbers = self._plan.findall(block)
        texts = (f"\n{self._tags.opens_child}\n{number}:" for number in numbers)
        children = tuple(Spawn(prefix_ids_of(text, self._tokenizer), self._child_params) for text in texts)
        num_plans = max(1, block.count(self._tags.plan))
        return Actions(children, block=bool(children), is_malformed=len(children) != num_plans)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        """Each child's whole text, with its tags and its number, then what its parent continues after."""
        merged = [piece for child in children for piece in (PrefixOf(child), child, *self._closing(child))]
        return [*merged, self._after]

    def _closing(self, child: ChildOutput) -> list[Piece]:
        tag = self._tags.closes_child
        return closing(child, tag, self._tags.before_closing + tag, self._tokenizer)

    def _block(self, context: list[int]) -> str:
        """The block of plans that ends ``context``; empty if it was not opened, or closed before."""
        block = text_since(self._tags.opens_plans, context, self._tokenizer)
        return block if block is not None and block.count(self._tags.closes_plans) == 1 else ""
