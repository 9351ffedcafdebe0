# SPDX-License-Identifier: Apache-2.0
"""Upstream's V0 asynchronous engine, with `resume_sequence`."""

import asyncio
from collections.abc import Sequence
from typing import Any

from vllm._overlay import fall_back_to
from vllm._upstream.engine import async_llm_engine as upstream
from vllm.engine.hooked import has_hooks
from vllm.engine.request_checks import only_value_errors
from vllm.engine.resume import ids_of
from vllm.sampling_params import SamplingParams

_IDLE_SECONDS = 0.001


class _AsyncLLMEngine(upstream._AsyncLLMEngine):
    """Upstream's `_AsyncLLMEngine`, which ends at any error in adding a request that is no `ValueError`."""

    async def add_request_async(self, *args: Any, **kwargs: Any) -> None:
        """Upstream's; what cannot be added is refused."""
        with only_value_errors():
            await super().add_request_async(*args, **kwargs)


class AsyncLLMEngine(upstream.AsyncLLMEngine):
    """Upstream's `AsyncLLMEngine`; the sequence hooks are the engine's own."""

    _engine_class = _AsyncLLMEngine

    async def add_request(self, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        """Upstream's; a grammar is compiled before, and not in the loop in which the engine steps.

        Raises:
            ValueError: the grammar is none that can guide the model.
        """
        if isinstance(params, SamplingParams) and params.guided_decoding is not None:
            decoding = self.engine.decoding_config
            params = await upstream.build_guided_decoding_logits_processor_async(
                sampling_params=params,
                tokenizer=await self.get_tokenizer(kwargs.get("lora_request")),
                default_guided_backend=decoding.backend,
                reasoning_backend=decoding.reasoning_backend,
                model_config=self.engine.model_config,
            )
        return await super().add_request(request_id, prompt, params, *args, **kwargs)

    async def resume_sequence(self, request_id: str, text_or_token_ids: str | Sequence[int] | None = None) -> None:
        """`LLMEngine.resume_sequence`; it takes effect at the next step. The engine steps on while a text is encoded.

        Raises:
            ValueError: as there.
        """
        room = self.engine.room_to_resume(request_id)
        self.engine.resume_sequence(request_id, await ids_of(text_or_token_ids, room, self.get_tokenizer))

    async def sequences_awaiting_resume(self) -> list[str]:
        """`LLMEngine.sequences_awaiting_resume`."""
        return self.engine.sequences_awaiting_resume()

    async def engine_step(self, virtual_engine: int) -> bool:
        """Upstream's step. While all that is unfinished waits for a caller, it doesn't spin."""
        in_progress = await super().engine_step(virtual_engine)
        if has_hooks(self.engine) and self.engine.is_waiting_for_callers(virtual_engine):
            await asyncio.sleep(_IDLE_SECONDS)
        return in_progress


__getattr__ = fall_back_to("vllm._upstream.engine.async_llm_engine")
