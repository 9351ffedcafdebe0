# SPDX-License-Identifier: Apache-2.0
"""Upstream's client of an engine in its own process, with `resume_sequence`."""

import asyncio
import pickle
from collections.abc import Sequence
from typing import Any

from sequence_hooks.results import Waiting
from sequence_hooks.serving.live.trees import LiveRequests, LiveSequence
from sequence_hooks.tree.resume import ids_of
from vllm._overlay import fall_back_to
from vllm._upstream.engine.multiprocessing import client as upstream
from vllm.engine.admission import admit_early
from vllm.engine.multiprocessing.hook_calls import RPCHookCall, RPCHookResult
from vllm.engine.outlines import told


class MQLLMEngineClient(upstream.MQLLMEngineClient):
    """Upstream's `MQLLMEngineClient`; the engine implements the sequence hooks."""

    def generate(self, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any) -> Any:
        """As `AsyncLLMEngine.generate`."""
        generate = super().generate

        def admitted(params: Any, name: str) -> Any:
            admit_early(self, name, params)
            return generate(prompt, params, name, *args, **kwargs)

        return told(self, admitted, sampling_params, request_id)

    async def resume_sequence(self, request_id: str, text_or_token_ids: str | Sequence[int] | None = None) -> None:
        """`AsyncLLMEngine.resume_sequence`."""
        room = await self._call("room_to_resume", request_id)
        token_ids = await ids_of(text_or_token_ids, room, self.get_tokenizer)
        await self._call("resume_sequence", request_id, token_ids)

    async def sequences_awaiting_resume(self) -> list[Waiting]:
        """`AsyncLLMEngine.sequences_awaiting_resume`."""
        waiting: list[Waiting] = await self._call("sequences_awaiting_resume")
        return waiting

    async def live_requests(self, limit: int, num_tokens: int) -> LiveRequests:
        """`AsyncLLMEngine.live_requests`."""
        found: LiveRequests = await self._call("live_requests", limit, num_tokens)
        return found

    async def live_tree(self, request_id: str, num_tokens: int) -> tuple[LiveSequence, ...]:
        """`AsyncLLMEngine.live_tree`."""
        tree: tuple[LiveSequence, ...] = await self._call("live_tree", request_id, num_tokens)
        return tree

    async def _call(self, method: str, *arguments: Any) -> Any:
        if self.errored:
            raise self.dead_error
        call = RPCHookCall(method=method, arguments=arguments)
        answers: asyncio.Queue[RPCHookResult | BaseException] = asyncio.Queue()
        self.output_queues[call.request_id] = answers
        try:
            await self.input_socket.send_multipart((pickle.dumps(call),), copy=False)
            answer = await answers.get()
        finally:
            del self.output_queues[call.request_id]
        if isinstance(answer, BaseException):
            raise answer
        return answer.value


__getattr__ = fall_back_to("vllm._upstream.engine.multiprocessing.client")
