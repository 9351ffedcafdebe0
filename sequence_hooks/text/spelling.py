# SPDX-License-Identifier: Apache-2.0
"""Whether a model can sample a text at all: whether tokens exist that have it when they are put together."""

from collections.abc import Collection
from typing import Protocol

from sequence_hooks.text.continuing import Continuer

_PART = "\ufffd"
"""What a token decodes to that has a part of a character."""


class _Speller(Continuer, Protocol):
    def get_vocab(self) -> dict[str, int]: ...


def can_spell(text: str, tokenizer: _Speller) -> bool:
    """Whether some tokens in a row contain ``text``, the first and the last of which may have more than it.

    Only if the tokenizer does not spell it itself, each of its tokens is looked at. Where tokens have parts of
    characters, texts beyond ASCII are taken for possible.
    """
    own = tokenizer.encode(text, add_special_tokens=False)
    if text in tokenizer.decode(list(own), skip_special_tokens=False):
        return True
    texts = {each for token_id in tokenizer.get_vocab().values() for each in _texts_of(token_id, tokenizer)}
    if not text.isascii() and any(_PART in each for each in texts):
        return True
    return any(text in each for each in texts) or _can_join(text, texts - {""})


def _texts_of(token_id: int, tokenizer: _Speller) -> tuple[str, str]:
    """What a token decodes to: alone, and after another one, where many decoders begin with a space."""
    alone, twice = (tokenizer.decode([token_id] * count, skip_special_tokens=False) for count in (1, 2))
    return alone, twice.removeprefix(alone)


def _can_join(text: str, texts: Collection[str]) -> bool:
    """Whether several of ``texts`` in a row contain ``text``."""
    # Where in the text a token may end: of one that begins before it, and then of each that goes on from there.
    ends = {end for end in range(1, len(text)) if any(each.endswith(text[:end]) for each in texts)}
    for start in range(len(text)):
        if start == 0 or start in ends:
            if start and any(each.startswith(text[start:]) for each in texts):
                return True
            ends |= {start + len(each) for each in texts if text.startswith(each, start)}
    return len(text) in ends
