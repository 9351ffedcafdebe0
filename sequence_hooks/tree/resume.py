# SPDX-License-Identifier: Apache-2.0
"""What a caller may give to a sequence that waits for it: tokens that the sequence has room for.

A text is encoded on the caller's side, not between two steps of the engine, and not at all if it is too long to ever
fit.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

from sequence_hooks.handlers.actions import as_token_id
from sequence_hooks.text.continuing import continuing_ids
from sequence_hooks.text.messages import abbreviated, abbreviated_error
from sequence_hooks.tree.merge import inserted

W = TypeVar("W")
Given = str | Iterable[int] | None
"""A text, token ids, or nothing."""


@dataclass(frozen=True)
class ResumeRoom:
    """What a sequence that waits has room for."""

    num_tokens: int
    """Tokens up to the model's length, or that of the sequence's adapter."""

    lora_request: Any
    """The sequence's adapter, which may have its own tokenizer; None if it has none."""


@lru_cache(maxsize=16)
def longest_token(tokenizer: Any) -> int:
    """Characters of the tokenizer's longest token; a text has at least one token for that many characters."""
    return max(map(len, tokenizer.get_vocab()))


def encode_within(text: str, tokenizer: Any, room: int) -> list[int]:
    """The token ids of ``text``, without special tokens.

    Raises:
        ValueError: the text is longer than ``room`` tokens can be, or cannot be encoded.
    """
    most = room * longest_token(tokenizer)
    if len(text) > most:
        raise ValueError(
            f"resume_sequence: text_or_token_ids has {len(text)} characters, and the sequence has room for {room} "
            f"tokens, which are {most} characters at most; give a shorter text"
        )
    try:
        return continuing_ids(text, tokenizer)
    except (TypeError, ValueError) as error:
        raise _no_tokens(text, error) from None


async def encode_in_thread(text: str, tokenizer: Any, room: int) -> list[int]:
    """`encode_within` in a thread, so that the event loop is not blocked."""
    encode = partial(_encode_with_copy, text, tokenizer, room)
    return await asyncio.get_running_loop().run_in_executor(_encoder, encode)


_encoder = ThreadPoolExecutor(1, thread_name_prefix="resume_sequence")
_copy_of = lru_cache(maxsize=16)(copy.deepcopy)


def _encode_with_copy(text: str, tokenizer: Any, room: int) -> list[int]:
    # While a tokenizer encodes in one thread, truncating with it in another one raises an error.
    return encode_within(text, _copy_of(tokenizer), room)


def checked_ids(given: Any, room: int, vocab_size: int | None) -> tuple[int, ...]:
    """``given``, which is token ids or None for nothing, as token ids of the model.

    Raises:
        ValueError: it is not a sequence of token ids, has one outside the vocabulary, or more than ``room``.
    """
    given = () if given is None else given
    try:
        num_given = len(given)
        token_ids = tuple(map(as_token_id, given)) if num_given <= room else ()
        inserted(token_ids, vocab_size)
    except (TypeError, ValueError) as error:
        raise _no_tokens(given, error) from None
    if num_given > room:
        raise ValueError(
            f"resume_sequence: text_or_token_ids has {num_given} tokens, and the sequence has room for {room}; "
            "give fewer"
        )
    return token_ids


async def ids_of(given: Given, room: ResumeRoom, tokenizer_of: Callable[[Any], Awaitable[Any]]) -> tuple[int, ...]:
    """`checked_ids` of a text, of token ids, or of nothing. A text is encoded in a thread, as above.

    Args:
        tokenizer_of: Returns an adapter's own tokenizer, or the model's.
    """
    if isinstance(given, str):
        given = await encode_in_thread(given, await tokenizer_of(room.lora_request), room.num_tokens)
    return checked_ids(given, room.num_tokens, vocab_size=None)


def _no_tokens(given: Any, error: Exception) -> ValueError:
    return ValueError(
        f"resume_sequence: text_or_token_ids is {abbreviated(given)}; give a text, or a list of token ids "
        f"({abbreviated_error(error)})"
    )


def find_waiting(request_id: str, waiting: Mapping[str, W]) -> W:
    """The entry of ``waiting`` for a request id; raises a `ValueError` that names the sequences that wait."""
    if request_id not in waiting:
        raise ValueError(
            f"resume_sequence: request_id is {abbreviated(request_id)}, and no such sequence waits to be resumed; "
            f"those that wait are {abbreviated(sorted(waiting))}"
        )
    return waiting[request_id]
