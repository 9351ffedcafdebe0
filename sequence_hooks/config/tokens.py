# SPDX-License-Identifier: Apache-2.0
"""Resolves the texts of hook tokens to ids, and checks ids against the model's vocabulary."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from sequence_hooks.config.checks import raise_for_field
from sequence_hooks.config.notations import one_token_tags
from sequence_hooks.config.special_kwargs import K, SpecialKwargs
from sequence_hooks.text.encoding import Tokenizer, ids_of, prefix_ids_of, single_token, token_of
from sequence_hooks.text.messages import abbreviated


def resolve(special_kwargs: K, load_tokenizer: Callable[[], Tokenizer] | None, vocab_size: int) -> K:
    """``special_kwargs`` for a model: every token is given by its id, which is in the vocabulary.

    Args:
        load_tokenizer: Returns the model's tokenizer, and is called only if a token is given by its text. None if the
            engine has no tokenizer.
        vocab_size: Tokens of the model.

    Raises:
        ValueError: a field needs a tokenizer or a token that is not there; the message names the field, the value and
            the way out.
    """
    if needs_tokenizer(special_kwargs):
        if load_tokenizer is None:
            raise ValueError(
                "special_kwargs: a token is given by its text, and skip_tokenizer_init=True leaves nothing to look it "
                "up in; give its id, or set skip_tokenizer_init=False"
            )
        special_kwargs = with_token_ids(special_kwargs, load_tokenizer())
    if special_kwargs.merge_separator and load_tokenizer is None:
        raise_for_field(
            special_kwargs, "merge_separator", "set it to '', or skip_tokenizer_init=False: it needs a tokenizer"
        )
    check_vocabulary(special_kwargs, vocab_size)
    return special_kwargs


def needs_tokenizer(special_kwargs: SpecialKwargs) -> bool:
    """Whether anything is given by its text that needs to become tokens, or a protocol by its name that has tags."""
    given = special_kwargs.child_prefix, special_kwargs.child_stop, _hook_texts(special_kwargs)
    return any(given) or bool(one_token_tags(special_kwargs))


def with_token_ids(special_kwargs: K, tokenizer: Tokenizer) -> K:
    """``special_kwargs`` with every token given by its id; hooks that are texts stay texts, and a protocol is no longer
    named.

    Raises:
        ValueError: a text is not exactly one token where it has to be, or cannot be spelled; the message names the
            field, the value and the way out.
    """
    changes: dict[str, object] = {"protocol": None}
    for tag in one_token_tags(special_kwargs):
        _check_tag(special_kwargs.protocol, tag, tokenizer)
    if special_kwargs.trigger_by == "token":
        for name in ("sync_token", "promise_token"):
            text = getattr(special_kwargs, name)
            if text is not None:
                changes |= {name: None, f"{name}_id": token_of(name, text, tokenizer)}
        changes["handlers"] = tuple(
            (token_of("handlers", token, tokenizer) if isinstance(token, str) else token, handler)
            for token, handler in special_kwargs.named_handlers
        )
    if special_kwargs.child_prefix is not None:
        changes |= {"child_prefix": None, "child_prefix_token_ids": _prefix_ids(special_kwargs, tokenizer)}
    if special_kwargs.child_stop is not None:
        changes |= {"child_stop": None, "child_sampling_params": _with_stop(special_kwargs, tokenizer)}
    return dataclasses.replace(special_kwargs, **changes)  # type: ignore[arg-type]


def _check_tag(protocol: str | None, tag: str, tokenizer: Tokenizer) -> None:
    if single_token(tag, tokenizer) is None:
        ids = tokenizer.encode(tag, add_special_tokens=False)
        raise ValueError(
            f"special_kwargs: protocol {protocol!r} has the tag {abbreviated(tag)}, which is {len(ids)} tokens "
            f"{abbreviated(ids)} of the model's tokenizer; use a model that was trained for the protocol, or add its "
            "tags to the tokenizer as special tokens"
        )


def _hook_texts(special_kwargs: SpecialKwargs) -> list[str]:
    given = (
        special_kwargs.sync_token,
        special_kwargs.promise_token,
        *(token for token, _ in special_kwargs.named_handlers),
    )
    return [token for token in given if isinstance(token, str)]


def _prefix_ids(special_kwargs: SpecialKwargs, tokenizer: Tokenizer) -> tuple[Any, ...]:
    given: str | Sequence[str] | None = special_kwargs.child_prefix
    encode = ids_of if special_kwargs.child_context == "none" else prefix_ids_of
    texts = [given] if isinstance(given, str) else list(given or ())
    prefixes = tuple(_known_ids("child_prefix", text, tokenizer, encode) for text in texts)
    return prefixes[0] if isinstance(given, str) else prefixes


def _known_ids(
    name: str, text: str, tokenizer: Tokenizer, encode: Callable[[str, Tokenizer], tuple[int, ...]]
) -> tuple[int, ...]:
    ids = encode(text, tokenizer)
    if tokenizer.unk_token_id in ids:
        raise ValueError(
            f"special_kwargs: {name} has {abbreviated(text)}, which the model's tokenizer cannot spell: its tokens "
            f"{abbreviated(list(ids))} include the unknown token {tokenizer.unk_token_id}; use a text of its "
            "vocabulary, or add it to the tokenizer as a special token"
        )
    return ids


def _with_stop(special_kwargs: SpecialKwargs, tokenizer: Tokenizer) -> dict[str, Any]:
    """The parameters of children, with what ends them: tokens where a text is one, and strings."""
    texts = (special_kwargs.child_stop,) if isinstance(special_kwargs.child_stop, str) else special_kwargs.child_stop
    for text in texts or ():
        _known_ids("child_stop", text, tokenizer, ids_of)
    ids = [single_token(text, tokenizer) for text in texts or ()]
    stop = {
        "stop_token_ids": [token_id for token_id in ids if token_id is not None],
        "stop": [text for text, token_id in zip(texts or (), ids, strict=True) if token_id is None],
    }
    return {**(special_kwargs.child_sampling_params or {}), **{name: value for name, value in stop.items() if value}}


def check_vocabulary(special_kwargs: SpecialKwargs, vocab_size: int) -> None:
    """Raise a `ValueError` if a token id lies outside a vocabulary of ``vocab_size`` tokens."""
    ids = [("sync_token_id", special_kwargs.sync_token_id), ("promise_token_id", special_kwargs.promise_token_id)]
    ids += [("child_prefix_token_ids", token_id) for prefix in special_kwargs.child_prefixes for token_id in prefix]
    ids += [("handlers", token) for token, _ in special_kwargs.named_handlers if isinstance(token, int)]
    for name, token_id in ids:
        if token_id is not None and not 0 <= token_id < vocab_size:
            raise ValueError(
                f"special_kwargs: {name} has {abbreviated(token_id)}, which is not in the model's vocabulary; "
                f"use an id from 0 to {vocab_size - 1}"
            )
