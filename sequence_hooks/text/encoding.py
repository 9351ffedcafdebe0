# SPDX-License-Identifier: Apache-2.0
"""What tokens a text is: those of a trigger, of a tag, and of a text that continues a context."""

from collections.abc import Mapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from sequence_hooks.text.continuing import Continuer, continues, continuing_ids
from sequence_hooks.text.messages import abbreviated


class Tokenizer(Continuer, Protocol):
    """What hooks need from a tokenizer; those of transformers satisfy it."""

    @property
    def unk_token_id(self) -> Any: ...

    def get_vocab(self) -> dict[str, int]: ...


def token_of(name: str, text: str, tokenizer: Tokenizer) -> int:
    """The id of the one token that ``text``, given in the field ``name``, is.

    Raises:
        ValueError: it is several tokens, or unknown; the message names the field, the text, its tokens and the way out.
    """
    token_id = single_token(text, tokenizer)
    if token_id is None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        raise ValueError(
            f"special_kwargs: {name} has {abbreviated(text)}, which is {len(ids)} tokens {abbreviated(ids)} of "
            "the model's tokenizer; use a text that is one token of its own, add it to the tokenizer as a "
            "special token, or set trigger_by='text'"
        )
    return token_id


def ids_of(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token ids of a text, without special tokens around it. A token's text is that token, wherever it stands."""
    token_id = single_token(text, tokenizer)
    return tuple(tokenizer.encode(text, add_special_tokens=False)) if token_id is None else (token_id,)


def prefix_ids_of(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token ids of a text that continues a context. A token's text is that token, as in `ids_of`."""
    token_id = single_token(text, tokenizer)
    if token_id is not None and continues((token_id,), text, tokenizer):
        return (token_id,)
    return tuple(continuing_ids(text, tokenizer))


def single_token(text: str, tokenizer: Tokenizer) -> int | None:
    """The id of the one token that ``text`` is; None if it is several, or unknown."""
    token_id = _vocabulary(tokenizer).get(text)
    if token_id is not None:
        return token_id
    ids = tokenizer.encode(text, add_special_tokens=False)
    return None if len(ids) != 1 or ids[0] == tokenizer.unk_token_id else ids[0]


_VOCABULARIES: WeakKeyDictionary[Any, tuple[int, Mapping[str, int]]] = WeakKeyDictionary()
"""Those of tokenizers that know how many tokens they have, with that number."""


def _vocabulary(tokenizer: Any) -> Mapping[str, int]:
    """The ids of a tokenizer's tokens. Those of transformers make the mapping anew whenever they are asked, which takes
    longer than a step: it is kept until tokens are added."""
    try:
        size, (num_read, vocabulary) = len(tokenizer), _VOCABULARIES.get(tokenizer, (-1, {}))
    except TypeError:
        # A stand-in without a length, or one that cannot be kept.
        own: Mapping[str, int] = tokenizer.get_vocab()
        return own
    if num_read != size:
        vocabulary = tokenizer.get_vocab()
        _VOCABULARIES[tokenizer] = size, vocabulary
    return vocabulary
