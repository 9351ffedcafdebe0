# SPDX-License-Identifier: Apache-2.0
"""Upstream's chat completions, whose choices carry their trees."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from sequence_hooks.serving.trees import CHAT_CHUNK, TreeStream, add_trees, keep_last
from vllm._overlay import fall_back_to
from vllm._upstream.entrypoints.openai import serving_chat as upstream
from vllm.engine.hooked import may_wait
from vllm.entrypoints.openai.protocol import ChatCompletionRequest, ChatCompletionResponse, ErrorResponse
from vllm.outputs import RequestOutput


class OpenAIServingChat(upstream.OpenAIServingChat):
    """Upstream's `OpenAIServingChat`; see `sequence_hooks.serving.trees`."""

    async def chat_completion_stream_generator(
        self, request: ChatCompletionRequest, result_generator: AsyncIterator[RequestOutput], *args: Any, **kwargs: Any
    ) -> AsyncGenerator[str, None]:
        request_id, model_name, *_ = args
        chunk = {"id": request_id, "object": CHAT_CHUNK, "created": int(time.time()), "model": model_name}
        stream = TreeStream(chunk, request.n or 1)
        made = super().chat_completion_stream_generator(request, stream.watched(result_generator), *args, **kwargs)
        has_events = request.stream_children or await may_wait(self.engine_client)
        async for line in stream.with_events(made) if has_events else stream.of_parent(made):
            yield line

    async def chat_completion_full_generator(
        self, request: ChatCompletionRequest, result_generator: AsyncIterator[RequestOutput], *args: Any, **kwargs: Any
    ) -> ChatCompletionResponse | ErrorResponse:
        results: list[RequestOutput] = []
        watched = keep_last(result_generator, results)
        response = await super().chat_completion_full_generator(request, watched, *args, **kwargs)
        if isinstance(response, ChatCompletionResponse):
            add_trees(response, results[0].outputs)
        return response


__getattr__ = fall_back_to("vllm._upstream.entrypoints.openai.serving_chat")
