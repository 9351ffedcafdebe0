# SPDX-License-Identifier: Apache-2.0
"""Resolves the texts of hook tokens to ids, and checks ids against the model's vocabulary."""

import dataclasses
from typing import Any, Protocol

from sequence_hooks.config import K, SpecialKwargs
from sequence_hooks.shown import shortened


class Tokenizer(Protocol):
    """What hooks need from a tokenizer; those of transformers satisfy it."""

    @property
    def unk_token_id(self) -> Any: ...

    def get_vocab(self) -> dict[str, int]: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


def needs_tokenizer(special_kwargs: SpecialKwargs) -> bool:
    """Whether any hook token is given by its text."""
    texts = [
        special_kwargs.sync_token,
        special_kwargs.promise_token,
        *(token for token, _ in special_kwargs.named_handlers),
    ]
    return any(isinstance(text, str) for text in texts)


def with_token_ids(special_kwargs: K, tokenizer: Tokenizer) -> K:
    """``special_kwargs`` with every token given by its id.

    Raises:
        ValueError: a text is not exactly one token; the message names the field, the value and the way out.
    """
    changes: dict[str, object] = {}
    for name in ("sync_token", "promise_token"):
        text = getattr(special_kwargs, name)
        if text is not None:
            changes |= {name: None, f"{name}_id": _token_id(name, text, tokenizer)}
    changes["handlers"] = tuple(
        (_token_id("handlers", token, tokenizer) if isinstance(token, str) else token, handler)
        for token, handler in special_kwargs.named_handlers
    )
    return dataclasses.replace(special_kwargs, **changes)  # type: ignore[arg-type]


def check_vocabulary(special_kwargs: SpecialKwargs, vocab_size: int) -> None:
    """Raise a `ValueError` if a token id lies outside a vocabulary of ``vocab_size`` tokens."""
    ids = [("sync_token_id", special_kwargs.sync_token_id), ("promise_token_id", special_kwargs.promise_token_id)]
    ids += [("child_prefix_token_ids", token_id) for prefix in special_kwargs.child_prefixes for token_id in prefix]
    ids += [("handlers", token) for token, _ in special_kwargs.named_handlers if isinstance(token, int)]
    for name, token_id in ids:
        if token_id is not None and not 0 <= token_id < vocab_size:
            raise ValueError(
                f"special_kwargs: {name} has {shortened(token_id)}, which is not in the model's vocabulary; "
                f"use an id from 0 to {vocab_size - 1}"
            )


def _token_id(name: str, text: str, tokenizer: Tokenizer) -> int:
    token_id = tokenizer.get_vocab().get(text)
    if token_id is not None:
        return token_id
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        raise ValueError(
            f"special_kwargs: {name} has {shortened(text)}, which is {len(ids)} tokens {shortened(ids)} of "
            "the model's tokenizer; use a text that is one token of its own, or add it to the tokenizer as a "
            "special token"
        )
    return ids[0]
