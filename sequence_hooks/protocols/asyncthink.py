# SPDX-License-Identifier: Apache-2.0
"""AsyncThink (arXiv 2510.26658): an organizer hands sub-queries to workers, and joins each by its number::

    The organizer:  ...<FORK-1>the even roots</FORK-1>...<FORK-2>the odd roots</FORK-2>...<JOIN-2>
    A worker:       the odd roots ~ ...<RETURN>there are none</RETURN>
    After a join:   there are none</JOIN-2>..., while worker 1 still runs

Read in summaries of the paper alone, as neither its code nor a checkpoint is public: its abstract, and a longer
account of its protocol in a public repository of notes. They agree that all control is text; that the organizer goes
on after ``</FORK-i>``, pauses at ``<JOIN-i>`` until worker i has returned, and gets only what the worker has put
between ``<RETURN>`` and ``</RETURN>``, followed by ``</JOIN-i>``; that workers have the same weights, and a context of
their own that begins with the sub-query; and that a pool of 2 to 4 agents, the organizer included, was trained with
Qwen3-4B, with at most 512 tokens for a worker in its mathematics.

A worker that the organizer never joins is dropped, there and here: it is cancelled when the organizer ends.

Here it differs: a ``<JOIN-i>`` without a worker i, or that has been joined, is text; there training penalises it. If
two unjoined workers have one number, it is the later one's.

Not confirmed: what a worker is told beside its sub-query. The account speaks of a prompt like the organizer's, whose
text is unknown: here the sub-query is a user's only message, in the tokenizer's chat template if it has one, and else
it is followed by a line break. White space around inserted text is a guess as well, and so is what is joined of a
worker that ends without ``<RETURN>``: all that it has said.
"""

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from sequence_hooks.config.notations import Notation
from sequence_hooks.handlers import Actions, Merged, Spawn, TokenEvent
from sequence_hooks.protocols.tags import ending_with, text_since
from sequence_hooks.results import ChildOutput
from sequence_hooks.text.encoding import Tokenizer, prefix_ids_of
from sequence_hooks.tree.ids import child_id

NOTATION = Notation(
    fields={
        "handlers": {">": "sequence_hooks.protocols.asyncthink.handler"},
        "trigger_by": "text",
        "unjoined_at_end": "cancel",
    }
)
"""What it configures."""

_TAG = re.compile(r"<(/FORK|JOIN)-([0-9]{1,9})>")
_LONGEST_TAG = len("</FORK-123456789>")
_MAX_LABELS = 65_536
"""Workers whose labels are remembered, over all requests; more than can be unjoined at one time."""


class Organizer:
    """Spawns a worker where a fork ends, and waits for one at its join. Other tags that end alike are text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._child_params = ending_with("</RETURN>", tokenizer)
        self._labels: OrderedDict[str, str] = OrderedDict()
        """By request id, what follows ``FORK-`` in the tag that has asked for a worker."""

    def on_token(self, event: TokenEvent) -> Actions:
        tag = self._tag([*event.output_token_ids[-_LONGEST_TAG:], event.token_id])
        if tag is None:
            return Actions()
        kind, label = tag
        return self._fork(event, label) if kind == "/FORK" else self._join(event, label)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        """What each worker returns, and the tag that closes its join."""
        return "".join(f"{self._returned(child)}</JOIN-{self._labels.get(child.request_id, '')}>" for child in children)

    def _fork(self, event: TokenEvent, label: str) -> Actions:
        text = text_since(f"<FORK-{label}>", [*event.output_token_ids, event.token_id], self._tokenizer)
        if text is None or text.count(f"</FORK-{label}>") != 1:
            return Actions(is_malformed=True)
        query = text.partition(f"</FORK-{label}>")[0].strip()
        self._labels[child_id(event.request_id, event.num_children)] = label
        if len(self._labels) > _MAX_LABELS:
            self._labels.popitem(last=False)
        return Actions((Spawn(prefix_ids_of(self._prompt(query), self._tokenizer), self._child_params, "none"),))

    def _join(self, event: TokenEvent, label: str) -> Actions:
        numbers = [each.number for each in event.unjoined if self._label_of(event, each.number) == label]
        # A number that nobody has yet is refused, and the caller told.
        return Actions(block=True, wait_for=(numbers[-1] if numbers else event.num_children,))

    def _label_of(self, event: TokenEvent, number: int) -> str | None:
        return self._labels.get(child_id(event.request_id, number))

    def _tag(self, token_ids: list[int]) -> tuple[str, str] | None:
        """The first tag that the last token completes."""
        text, before = (self._text(ids) for ids in (token_ids, token_ids[:-1]))
        completed = (each for each in _TAG.finditer(text) if each.end() > len(before))
        found = next(completed, None)
        return None if found is None else (found[1], found[2])

    def _prompt(self, query: str) -> str:
        tokenizer: Any = self._tokenizer
        if getattr(tokenizer, "chat_template", None) is None:
            return f"{query}\n"
        message = {"role": "user", "content": query}
        return str(tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True))

    def _returned(self, child: ChildOutput) -> str:
        text = self._text(list(child.result_token_ids))
        return text.rpartition("<RETURN>")[2].partition("</RETURN>")[0].strip()

    def _text(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


handler = Organizer
