# SPDX-License-Identifier: Apache-2.0
"""Merging: the token ids that a parent gets from its finished children.

Only token ids are merged here. Their text and logprobs are derived from these spans by `sequence_hooks.tree.transcript`
and by each engine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, islice
from typing import Any

import msgspec
from msgspec import structs

from sequence_hooks.handlers import Merged, Piece, PrefixOf, TokenHandler
from sequence_hooks.handlers.actions import as_token_id
from sequence_hooks.results import ChildOutput
from sequence_hooks.text.continuing import parted_ids
from sequence_hooks.text.messages import FAULTS, abbreviated, describe_error

_MAX_PIECES = 1_000_000
"""The maximum number of pieces that one join function may return; no model's context has room for more."""

Encode = Callable[[str], Sequence[int]]
"""Returns the token ids of a text that continues a sequence, without special tokens."""


@dataclass(frozen=True)
class FinishedChild:
    """A child that has finished, as its parent's join sees it."""

    output: ChildOutput
    handler: TokenHandler
    """The handler of the token that spawned it."""

    positions: Sequence[int]
    """The positions in its output of the tokens of its result."""


class Span(msgspec.Struct, frozen=True, omit_defaults=True):
    """Consecutive tokens to append to a parent: from one child's result, or inserted if ``child`` is None."""

    token_ids: Sequence[int]
    child: str | None = None
    """The request id of the child."""

    positions: Sequence[int] = ()
    """The position of each token in that child's output; negative ones count back from its beginning."""

    prefix_of: str | None = None
    """The request id of the child whose prefix inserted tokens are, at negative positions."""


def num_tokens(spans: Sequence[Span]) -> int:
    """How many tokens ``spans`` have in total."""
    return sum(len(span.token_ids) for span in spans)


def cut_to(spans: Sequence[Span], room: int) -> list[Span]:
    """The first ``room`` tokens of ``spans``."""
    kept: list[Span] = []
    for span in spans:
        kept.append(structs.replace(span, token_ids=span.token_ids[:room], positions=span.positions[:room]))
        room -= len(kept[-1].token_ids)
    return kept


def merge(children: Sequence[FinishedChild], encode: Encode, vocab_size: int | None) -> tuple[list[Span], str | None]:
    """The results of ``children``, in spawn order, joined by the handlers that spawned them.

    A handler whose join raises, or returns something that is not a result, contributes nothing.

    Args:
        vocab_size: Token ids must be below it; None if it is unknown.

    Returns:
        The spans, and the first error of a handler, if any.
    """
    encode = cache(encode)
    spans: list[Span] = []
    errors: list[str] = []
    # Handlers are compared by identity: a user-defined one may define __eq__ as it likes.
    for _, group in groupby(children, key=lambda child: id(child.handler)):
        by_id = {child.output.request_id: child for child in group}
        handler = next(iter(by_id.values())).handler
        try:
            merged = handler.join([child.output for child in by_id.values()])
            spans += _to_spans(merged, by_id, encode, vocab_size)
        except FAULTS as error:
            errors.append(describe_error(error))
    return spans, errors[0] if errors else None


def inserted(token_ids: Sequence[int], vocab_size: int | None) -> Span:
    """A span of tokens that no sequence sampled.

    Raises:
        ValueError: an id lies outside the vocabulary.
    """
    for token_id in token_ids:
        if token_id < 0 or (vocab_size is not None and token_id >= vocab_size):
            raise ValueError(f"token id {abbreviated(token_id)} is not in the model's vocabulary of {vocab_size}")
    return Span(token_ids)


def _to_spans(
    merged: Merged, children: Mapping[str, FinishedChild], encode: Encode, vocab_size: int | None
) -> list[Span]:
    pieces: list[Piece] = [merged] if isinstance(merged, str) else list(islice(merged, _MAX_PIECES + 1))
    if len(pieces) > _MAX_PIECES:
        raise ValueError(f"a join function returns more than {_MAX_PIECES} pieces")
    spans: list[Span] = []
    for kind, run in groupby(pieces, key=_kind_of):
        if kind == "ids":
            spans.append(inserted([as_token_id(piece) for piece in run], vocab_size))
        elif kind == "texts":
            # How a text is cut into tokens does not depend on the pieces in which it was given.
            spans += (inserted(ids, vocab_size) for ids in parted_ids(list(map(str, run)), encode))
        else:
            spans += (_to_span(piece, children) for piece in run)
    return spans


def _kind_of(piece: Any) -> str:
    if isinstance(piece, (ChildOutput, PrefixOf)):
        return "children"
    return "texts" if isinstance(piece, str) else "ids"


def _to_span(piece: Any, children: Mapping[str, FinishedChild]) -> Span:
    if isinstance(piece, ChildOutput):
        child = children[piece.request_id]
        return Span(child.output.result_token_ids, piece.request_id, child.positions)
    output = children[piece.child.request_id].output
    length = len(output.prefix_token_ids)
    return Span(output.prefix_token_ids, None, range(-length, 0), output.request_id)
