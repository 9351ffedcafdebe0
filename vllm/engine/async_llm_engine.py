# SPDX-License-Identifier: Apache-2.0
"""Upstream's V0 asynchronous engine, with `resume_sequence`, and with hooks as an argument."""

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

from vllm._overlay import fall_back_to
from vllm._upstream.engine import async_llm_engine as upstream
from vllm.config import SpecialKwargs
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.hook_client import HookClient
from vllm.engine.hooked import special_kwargs_of
from vllm.engine.outlines import compile_grammars
from vllm.engine.request_checks import only_value_errors
from vllm.sampling_params import SamplingParams

_IDLE_SECONDS = 0.001


class _AsyncLLMEngine(upstream._AsyncLLMEngine):
    """Upstream's `_AsyncLLMEngine`, which would die of any error but a `ValueError` in adding a request."""

    async def add_request_async(self, *args: Any, **kwargs: Any) -> None:
        """Upstream's `add_request_async`; a request that cannot be added is refused with a `ValueError`."""
        with only_value_errors():
            await super().add_request_async(*args, **kwargs)


class AsyncLLMEngine(HookClient, upstream.AsyncLLMEngine):
    """Upstream's `AsyncLLMEngine`; the engine inside it implements the sequence hooks."""

    _engine_class = _AsyncLLMEngine

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        compile_grammars(self.engine)

    @classmethod
    def from_engine_args(
        cls,
        engine_args: AsyncEngineArgs,
        *args: Any,
        special_kwargs: SpecialKwargs | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Upstream's `from_engine_args`; ``special_kwargs`` takes the place of that in ``engine_args``, as in `LLM`."""
        if special_kwargs is not None:
            engine_args = dataclasses.replace(engine_args, special_kwargs=special_kwargs)
        return super().from_engine_args(engine_args, *args, **kwargs)

    async def add_request(self, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        """Upstream's `add_request`, after compiling a grammar outside of the loop in which the engine steps.

        Raises:
            ValueError: the grammar cannot guide the model.
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

    async def engine_step(self, virtual_engine: int) -> bool:
        """Upstream's `engine_step`, which doesn't spin while every unfinished sequence waits for a caller."""
        in_progress = await super().engine_step(virtual_engine)
        if special_kwargs_of(self.engine) is not None and self.engine.is_waiting_for_callers(virtual_engine):
            await asyncio.sleep(_IDLE_SECONDS)
        return in_progress

    async def _call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.engine, method)(*arguments)


__getattr__ = fall_back_to("vllm._upstream.engine.async_llm_engine")
