# SPDX-License-Identifier: Apache-2.0
"""Upstream's chat completions, whose choices carry their trees."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from sequence_hooks.serving.live.questions import note_question
from sequence_hooks.serving.outlines.forms import Chat
from sequence_hooks.serving.outlines.requests import Asking, answered, asking, has_outlines
from sequence_hooks.serving.trees import CHAT_CHUNK, TreeStream, add_trees, keep_last
from vllm._overlay import fall_back_to
from vllm._upstream.entrypoints.openai import serving_chat as upstream
from vllm.engine.hooked import may_wait, special_kwargs_behind
from vllm.entrypoints.openai.protocol import ChatCompletionRequest, ChatCompletionResponse, ErrorResponse
from vllm.outputs import RequestOutput


class OpenAIServingChat(upstream.OpenAIServingChat):
    """Upstream's `OpenAIServingChat`; see `sequence_hooks.serving.trees`, and `sequence_hooks.serving.outlines`."""

    async def create_chat_completion(self, request: ChatCompletionRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            asked = await self._asking(request)
        except ValueError as error:
            return self.create_error_response(str(error))
        if asked is None:
            return await super().create_chat_completion(request, *args, **kwargs)
        create = super().create_chat_completion
        return await answered(asked, lambda each: create(each, *args, **kwargs))

    async def _asking(self, request: ChatCompletionRequest) -> Asking | None:
        special_kwargs = await special_kwargs_behind(self.engine_client)
        note_question(special_kwargs, Chat(request))
        if special_kwargs is None or not has_outlines(special_kwargs):
            return None
        return asking(Chat(request), special_kwargs, _constrain)

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


def _constrain(request: ChatCompletionRequest, regex: str) -> None:
    given = [name for name in type(request).model_fields if name.startswith("guided_") and getattr(request, name)]
    if given:
        raise ValueError(f"{given[0]} is given, and an outline has a grammar of its own; leave it out")
    request.guided_regex = regex


__getattr__ = fall_back_to("vllm._upstream.entrypoints.openai.serving_chat")
