# SPDX-License-Identifier: Apache-2.0
"""Turning what a join function gives into tokens of the parent."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, islice
from typing import Any

from vllm.hooks.branch import Branch
from vllm.hooks.handlers import Merged, Piece
from vllm.hooks.plugins import FAULTS, told
from vllm.hooks.results import ChildOutput
from vllm.hooks.shown import shortened
from vllm.sequence import Logprob, SampleLogprobs

_MOST_PIECES = 1_000_000
"""Of one join; no model's length has room for more."""

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Span:
    """Tokens to splice into a parent: a child's own, or inserted ones where ``source`` is None."""

    token_ids: Sequence[int]
    logprobs: SampleLogprobs
    """One entry a token: the child's own; for an inserted one the token alone, with certainty (0.0)."""

    source: Branch | None = None
    positions: Sequence[int] = ()
    """Where each stands in the output of ``source``."""

    def cut_to(self, room: int) -> "Span":
        """The first ``room`` tokens."""
        return replace(
            self,
            token_ids=self.token_ids[:room],
            logprobs=self.logprobs[:room],
            positions=self.positions[:room],
        )


@dataclass(frozen=True)
class Spans:
    """All that one join appends."""

    spans: list[Span]
    error: str | None = None
    """What a join function raised."""

    def __len__(self) -> int:
        """Tokens."""
        return sum(len(span.token_ids) for span in self.spans)

    def cut_to(self, room: int) -> "Spans":
        """The first ``room`` tokens."""
        kept: list[Span] = []
        for span in self.spans:
            kept.append(span.cut_to(room))
            room -= len(kept[-1].token_ids)
        return replace(self, spans=kept)


def merge(children: Sequence[Branch], encode: Encode, vocab_size: int | None) -> Spans:
    """The results of ``children``, joined by the handlers that spawned them, in spawn order.

    A join function that raises, or gives what is no result, gives nothing; the first of such errors is
    told.

    Args:
        encode: Token ids of a text, without special tokens.
        vocab_size: Ids must lie below it; None for any.
    """
    encode = cache(encode)
    spans: list[Span] = []
    errors: list[str] = []
    # By identity: a handler may compare as it likes.
    for _, group in groupby(children, key=lambda child: id(child.handler)):
        by_id = {child.seq_group.request_id: child for child in group}
        handler = next(iter(by_id.values())).handler
        assert handler is not None
        try:
            merged = handler.join([child.to_output() for child in by_id.values()])
            spans += _to_spans(merged, by_id, encode, vocab_size)
        except FAULTS as error:
            errors.append(told(error))
    return Spans(spans, errors[0] if errors else None)


def as_token_id(value: Any) -> int:
    """An integer of any type, numpy's for one.

    Raises:
        TypeError: it is none; True and False are none here.
    """
    if isinstance(value, bool):
        raise TypeError(f"{value} is no token id")
    return operator.index(value)


def inserted(token_ids: Sequence[int], vocab_size: int | None) -> Span:
    """A span of tokens that nobody sampled.

    Raises:
        ValueError: an id lies outside the vocabulary.
    """
    for token_id in token_ids:
        if token_id < 0 or (vocab_size is not None and token_id >= vocab_size):
            raise ValueError(f"token id {shortened(token_id)} is not in the model's vocabulary of {vocab_size}")
    return Span(token_ids, [{token_id: Logprob(logprob=0.0)} for token_id in token_ids])


def _to_spans(merged: Merged, children: Mapping[str, Branch], encode: Encode, vocab_size: int | None) -> list[Span]:
    pieces: list[Piece] = [merged] if isinstance(merged, str) else list(islice(merged, _MOST_PIECES + 1))
    if len(pieces) > _MOST_PIECES:
        raise ValueError(f"a join function gives more than {_MOST_PIECES} pieces")
    spans: list[Span] = []
    for is_id, run in groupby(pieces, key=lambda piece: not isinstance(piece, (str, ChildOutput))):
        if is_id:
            spans.append(inserted([as_token_id(piece) for piece in run], vocab_size))
        else:
            spans += (_to_span(piece, children, encode, vocab_size) for piece in run)
    return spans


def _to_span(piece: Piece, children: Mapping[str, Branch], encode: Encode, vocab_size: int | None) -> Span:
    if isinstance(piece, ChildOutput):
        child = children[piece.request_id]
        return Span(*child.result(), child, child.result_positions())
    return inserted(encode(str(piece)), vocab_size)
