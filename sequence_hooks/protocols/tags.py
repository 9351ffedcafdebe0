# SPDX-License-Identifier: Apache-2.0
"""The tags of a notation, as a model's tokenizer has them."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sequence_hooks.handlers import Piece
from sequence_hooks.results import ChildOutput
from sequence_hooks.text.encoding import Tokenizer, single_token

_FIRST_READ = 256
"""Tokens that are decoded at first to find the last occurrence of a tag."""


def ending_with(tag: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """The sampling parameters of a child that ends at ``tag``: at the token that it is, or at its text."""
    token_id = single_token(tag, tokenizer)
    return {"stop": [tag]} if token_id is None else {"stop_token_ids": [token_id]}


def closing(child: ChildOutput, tag: str, unfinished: str, tokenizer: Tokenizer) -> list[Piece]:
    """What follows the result of a ``child`` that ends at ``tag``.

    If it ended there, that is what its result lacks of the tag, as it was sampled: a token may have the text before the
    tag with a part of it, and is in the result.

    Args:
        unfinished: Follows the result of a child that ended in another way.
    """
    num_result = len(child.result_token_ids)
    # Each token of the tag has one of its bytes at least.
    read = child.token_ids[max(0, num_result - len(tag.encode())) :]
    text = tokenizer.decode(list(read), skip_special_tokens=False)
    return [*child.token_ids[num_result:]] if text.endswith(tag) and not child.failed else [unfinished]


def text_since(tag: str, context: Sequence[int], tokenizer: Tokenizer) -> str | None:
    """The text after the last ``tag`` in the text of ``context``; None if there is none."""
    window = _window_with(tag, context, tokenizer)
    return None if window is None else _text(window, tokenizer).rpartition(tag)[2]


@dataclass(frozen=True)
class Start:
    """Where a tag begins."""

    index: int
    """The token in which it does."""

    text_before: str
    """What that token has before it."""


def start_of(tag: str, token_ids: Sequence[int], tokenizer: Tokenizer) -> Start | None:
    """Where the last ``tag`` in the text of tokens begins; None if there is none."""
    window = _window_with(tag, token_ids, tokenizer)
    if window is None:
        return None
    # From the token in which it begins on, the tag is whole; from the next one on, it is not.
    first = bisect_left(range(len(window)), True, key=lambda start: tag not in _text(window[start:], tokenizer)) - 1
    # A token's text may depend on the one before.
    before = max(first - 1, 0)
    known = _text(window[before:first], tokenizer)
    text = _text(window[before:], tokenizer).rpartition(tag)[0]
    return Start(len(token_ids) - len(window) + first, text[len(known) :])


def _window_with(tag: str, context: Sequence[int], tokenizer: Tokenizer) -> list[int] | None:
    """The last tokens of ``context``, in whose text is a ``tag``; None if there is none.

    Reads no more of the context than it has to, in steps.
    """
    num_read = _FIRST_READ
    while tag not in _text(context[-num_read:], tokenizer):
        if num_read >= len(context):
            return None
        num_read *= 4
    return list(context[-num_read:])


def _text(token_ids: Sequence[int], tokenizer: Tokenizer) -> str:
    return tokenizer.decode(list(token_ids), skip_special_tokens=False)
