# SPDX-License-Identifier: Apache-2.0
"""The token ids of a text that goes on where other tokens end.

A tokenizer of SentencePiece's kind encodes a text as if a sentence began with it, and puts a space before it; some do
that after each added token, too. Where the text continues a sequence, nobody has asked for this space::

    asked for         \\n<Sub Searches>
    encoded alone     ▁  <0x0A>  <  Sub ...     a space too many
    encoded here         <0x0A>  <  Sub ...     as in the middle of a text

Where a tokenizer adds nothing, the ids are those that it gives.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

_ANCHORS = ("\n", "x", ".", ">", "0")
"""Texts that another text may follow without being merged with them. Which of them do depends on the tokenizer."""


class Continuer(Protocol):
    """What is needed of a tokenizer; those of transformers satisfy it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...


def continuing_ids(text: str, tokenizer: Continuer) -> list[int]:
    """The token ids of ``text`` after others, without special tokens around it.

    Where no ids decode to it, as for a character that the tokenizer lacks, they are those of the text alone.
    """
    alone = _encode(text, tokenizer)
    if not text or continues(alone, text, tokenizer):
        return alone
    token_ids = [token_id for piece in _pieces(text, tokenizer) for token_id in _ids_of(piece, tokenizer)]
    return token_ids if continues(token_ids, text, tokenizer) else alone


def parted_ids(texts: Sequence[str], encode: Callable[[str], Sequence[int]]) -> list[Sequence[int]]:
    """The token ids of adjacent texts, which are encoded together.

    Returns:
        Those of the last text apart, unless a token has parts of it and of what is before it.
    """
    together = encode("".join(texts))
    before = encode("".join(texts[:-1])) if len(texts) > 1 else ()
    num_before = len(before)
    if 0 < num_before < len(together) and list(together[:num_before]) == list(before):
        return [together[:num_before], together[num_before:]]
    return [together]


def continues(token_ids: Sequence[int], text: str, tokenizer: Continuer) -> bool:
    """Whether tokens decode to ``text`` where they follow others."""
    before = _encode(_ANCHORS[1], tokenizer)
    return _decode([*before, *token_ids], tokenizer) == _decode(before, tokenizer) + text


def _pieces(text: str, tokenizer: Continuer) -> Iterator[str]:
    """The added tokens in a text, which no other token crosses, and what is between them."""
    added: Any = getattr(tokenizer, "get_added_vocab", dict)()
    while text:
        found = [(start, -len(each), each) for each in added if each and (start := text.find(each)) >= 0]
        if not found:
            yield text
            return
        start, _, token = min(found)
        if start:
            yield text[:start]
        yield token
        text = text[start + len(token) :]


def _ids_of(piece: str, tokenizer: Continuer) -> list[int]:
    alone = _encode(piece, tokenizer)
    for token_ids in _candidates(piece, alone, tokenizer):
        if continues(token_ids, piece, tokenizer):
            return token_ids
    return alone


def _candidates(piece: str, alone: list[int], tokenizer: Continuer) -> Iterator[list[int]]:
    """The ids of a piece alone, and what they are in the middle of a text."""
    yield alone
    for anchor in _ANCHORS:
        before, both = _encode(anchor, tokenizer), _encode(anchor + piece, tokenizer)
        if both[: len(before)] == before:
            yield both[len(before) :]


def _encode(text: str, tokenizer: Continuer) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def _decode(token_ids: list[int], tokenizer: Continuer) -> str:
    return tokenizer.decode(token_ids, skip_special_tokens=False)
