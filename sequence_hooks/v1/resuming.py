# SPDX-License-Identifier: Apache-2.0
"""``sync_resume="manual"`` on V1: which sequences wait for their callers, and how they go on."""

from sequence_hooks.results import Waiting
from sequence_hooks.tree.resume import Given, encode_in_thread, longest_token
from sequence_hooks.v1.frontend import resuming
from sequence_hooks.v1.frontend.output_processor import HookOutputProcessor
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.llm_engine import LLMEngine


def sequences_awaiting_resume(engine: LLMEngine | AsyncLLM) -> list[Waiting]:
    """The sequences that wait at a sync token for a caller, those that wait longest first.

    Raises:
        ValueError: the engine has no hooks.
    """
    return resuming.awaiting(output_processor_of(engine))


def resume_sequence(engine: LLMEngine, request_id: str, text_or_token_ids: Given = None) -> None:
    """Let a sequence that waits go on, with ``text_or_token_ids`` after its children's results.

    Raises:
        ValueError: no such sequence waits, or it has no room for what it is given. It keeps waiting.
    """
    engine.engine_core.add_request(_request(engine, request_id, text_or_token_ids))


async def resume_sequence_async(engine: AsyncLLM, request_id: str, text_or_token_ids: Given = None) -> None:
    """`resume_sequence` for an asynchronous engine, which serves others while a text is encoded."""
    if isinstance(text_or_token_ids, str):
        processor = output_processor_of(engine)
        room = resuming.room_of(processor, request_id, engine.model_config.max_model_len)
        text_or_token_ids = await encode_in_thread(text_or_token_ids, processor.tokenizer, room)
    await engine.engine_core.add_request_async(_request(engine, request_id, text_or_token_ids))


def longest_text(engine: LLMEngine | AsyncLLM) -> int:
    """Characters of the longest text that any sequence could have room for; raises a `ValueError` without hooks."""
    tokenizer = output_processor_of(engine).tokenizer
    # Without a tokenizer only token ids can be given.
    return int(engine.model_config.max_model_len) * (1 if tokenizer is None else longest_token(tokenizer))


def _request(engine: LLMEngine | AsyncLLM, request_id: str, given: Given) -> EngineCoreRequest:
    model = engine.model_config
    return resuming.resumption(
        output_processor_of(engine), request_id, given, model.max_model_len, model.get_vocab_size()
    )


def output_processor_of(engine: LLMEngine | AsyncLLM) -> HookOutputProcessor:
    """What tells the engine's callers of trees; raises a `ValueError` if it has no hooks."""
    if not isinstance(engine.output_processor, HookOutputProcessor):
        raise ValueError("the engine has no sequence hooks; start it with special_kwargs")
    return engine.output_processor
