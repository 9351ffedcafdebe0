# SPDX-License-Identifier: Apache-2.0
"""``sync_resume="manual"`` on V1: which sequences wait for their callers, and how they go on.

The front end checks and encodes what a caller gives, and the engine's scheduler resumes the sequence. To the engine a
resumption is a request that its scheduler takes out of the way. It has the id of the request whose sequence waits, so
that upstream sends it to the same engine where there are several.
"""

from typing import Any

from sequence_hooks.tree.resume import Given, checked_ids, encode_in_thread, encode_within, longest_token
from sequence_hooks.v1.frontend.output_processor import HookOutputProcessor
from sequence_hooks.v1.wire import RESUME, bare_request
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.llm_engine import LLMEngine


def resume_sequence(engine: LLMEngine, request_id: str, text_or_token_ids: Given = None) -> None:
    """Let a sequence that waits go on, with ``text_or_token_ids`` after its children's results.

    Raises:
        ValueError: no such sequence waits, or it has no room for what it is given. It keeps waiting.
    """
    engine.engine_core.add_request(_resumption(engine, request_id, text_or_token_ids))


async def resume_sequence_async(engine: AsyncLLM, request_id: str, text_or_token_ids: Given = None) -> None:
    """`resume_sequence` for an asynchronous engine, which serves others while a text is encoded."""
    if isinstance(text_or_token_ids, str):
        processor = output_processor_of(engine)
        room = engine.model_config.max_model_len - processor.trees.paused_branch(request_id).num_context
        text_or_token_ids = await encode_in_thread(text_or_token_ids, processor.tokenizer, room)
    await engine.engine_core.add_request_async(_resumption(engine, request_id, text_or_token_ids))


def longest_text(engine: LLMEngine | AsyncLLM) -> int:
    """Characters of the longest text that any sequence could have room for; raises a `ValueError` without hooks."""
    tokenizer = output_processor_of(engine).tokenizer
    # Without a tokenizer only token ids can be given.
    return int(engine.model_config.max_model_len) * (1 if tokenizer is None else longest_token(tokenizer))


def output_processor_of(engine: LLMEngine | AsyncLLM) -> HookOutputProcessor:
    """What tells the engine's callers of trees; raises a `ValueError` if it has no hooks."""
    if not isinstance(engine.output_processor, HookOutputProcessor):
        raise ValueError("the engine has no sequence hooks; start it with special_kwargs")
    return engine.output_processor


def resumption(
    processor: HookOutputProcessor, request_id: str, given: Given, max_model_len: int, vocab_size: int | None
) -> EngineCoreRequest:
    """What to send to the engine, so that a sequence goes on with ``given`` after its children's results.

    Raises:
        ValueError: no such sequence waits, or ``given`` is not what it could go on with.
    """
    branch = processor.trees.paused_branch(request_id)
    room = max_model_len - branch.num_context
    token_ids: Any = encode_within(given, processor.tokenizer, room) if isinstance(given, str) else given
    token_ids = checked_ids(token_ids, room, vocab_size)
    processor.trees.resume(branch, ())
    resumed = {RESUME: [branch.sequence.engine_id, list(token_ids)]}
    return bare_request(branch.root.sequence.engine_id, [0], SamplingParams(max_tokens=1, extra_args=resumed))


def _resumption(engine: LLMEngine | AsyncLLM, request_id: str, given: Given) -> EngineCoreRequest:
    model = engine.model_config
    return resumption(output_processor_of(engine), request_id, given, model.max_model_len, model.get_vocab_size())
