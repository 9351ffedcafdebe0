# SPDX-License-Identifier: Apache-2.0
"""What a caller may give to a sequence that waits for it: tokens that the sequence has room for.

A text is encoded on the caller's side, not between two steps of the engine, and not at all if it is too long to ever
fit.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial

from sequence_hooks.resuming import Given, checked_ids, encode_within
from vllm.lora.request import LoRARequest
from vllm.transformers_utils.tokenizer import AnyTokenizer


@dataclass(frozen=True)
class ResumeRoom:
    """What a sequence that waits has room for."""

    num_tokens: int
    """Tokens up to the model's length, or that of the sequence's adapter."""

    lora_request: LoRARequest | None
    """The sequence's adapter, which may have its own tokenizer."""


async def ids_of(
    given: Given, room: ResumeRoom, tokenizer_of: Callable[[LoRARequest | None], Awaitable[AnyTokenizer]]
) -> tuple[int, ...]:
    """`checked_ids` of whatever is ``given``. A text is encoded in a thread, so the event loop is not blocked.

    Args:
        tokenizer_of: Returns an adapter's own tokenizer, or the model's.
    """
    if isinstance(given, str):
        encode = partial(_encode_with_copy, given, await tokenizer_of(room.lora_request), room.num_tokens)
        given = await asyncio.get_running_loop().run_in_executor(_encoder, encode)
    return checked_ids(given, room.num_tokens, vocab_size=None)


_encoder = ThreadPoolExecutor(1, thread_name_prefix="resume_sequence")


def _encode_with_copy(text: str, tokenizer: AnyTokenizer, room: int) -> list[int]:
    # While a tokenizer encodes in one thread, truncating with it in another one raises an error.
    return encode_within(text, _copy_of(tokenizer), room)


@lru_cache(maxsize=16)
def _copy_of(tokenizer: AnyTokenizer) -> AnyTokenizer:
    return copy.deepcopy(tokenizer)
