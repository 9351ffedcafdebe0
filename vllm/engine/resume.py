# SPDX-License-Identifier: Apache-2.0
"""What a caller gives to a sequence that waits for it, as the token ids that the engine gets."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sequence_hooks.tree.resume import Given, checked_ids, encode_in_thread
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
        given = await encode_in_thread(given, await tokenizer_of(room.lora_request), room.num_tokens)
    return checked_ids(given, room.num_tokens, vocab_size=None)
