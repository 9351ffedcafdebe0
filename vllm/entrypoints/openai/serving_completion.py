# SPDX-License-Identifier: Apache-2.0
"""Upstream's completions, whose choices carry their trees."""

from collections.abc import AsyncGenerator, AsyncIterator
from itertools import chain
from typing import Any

from sequence_hooks.serving.trees import TreeStream, add_trees
from vllm._overlay import fall_back_to
from vllm._upstream.entrypoints.openai import serving_completion as upstream
from vllm.engine.hooked import may_wait
from vllm.entrypoints.openai.protocol import CompletionRequest, CompletionResponse
from vllm.outputs import RequestOutput


class OpenAIServingCompletion(upstream.OpenAIServingCompletion):
    """Upstream's `OpenAIServingCompletion`; see `sequence_hooks.serving.trees`."""

    async def completion_stream_generator(
        self,
        request: CompletionRequest,
        request_prompts: list[Any],
        result_generator: AsyncIterator[tuple[int, RequestOutput]],
        *args: Any,
        **kwargs: Any,
    ) -> AsyncGenerator[str, None]:
        request_id, created_time, model_name, *_ = args
        chunk = {"id": request_id, "object": "text_completion", "created": created_time, "model": model_name}
        stream = TreeStream(chunk, request.n or 1)
        results = stream.watched(result_generator)
        made = super().completion_stream_generator(request, request_prompts, results, *args, **kwargs)
        has_events = request.stream_children or await may_wait(self.engine_client)
        async for line in stream.with_events(made) if has_events else stream.of_parent(made):
            yield line

    def request_output_to_completion_response(
        self, final_res_batch: list[RequestOutput], *args: Any, **kwargs: Any
    ) -> CompletionResponse:
        response = super().request_output_to_completion_response(final_res_batch, *args, **kwargs)
        add_trees(response, chain.from_iterable(result.outputs for result in final_res_batch))
        return response


__getattr__ = fall_back_to("vllm._upstream.entrypoints.openai.serving_completion")
