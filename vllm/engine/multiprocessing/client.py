# SPDX-License-Identifier: Apache-2.0
"""Upstream's client of an engine in its own process, with `resume_sequence`."""

import asyncio
import pickle
from typing import Any

from vllm._overlay import fall_back_to
from vllm._upstream.engine.multiprocessing import client as upstream
from vllm.engine.hook_client import HookClient
from vllm.engine.multiprocessing.hook_calls import RPCHookCall, RPCHookResult


class MQLLMEngineClient(HookClient, upstream.MQLLMEngineClient):
    """Upstream's `MQLLMEngineClient`; the engine implements the sequence hooks."""

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
