# SPDX-License-Identifier: Apache-2.0
"""Upstream's engine in its own process, which also answers calls of its hook methods."""

import time
from typing import Any

from vllm._overlay import fall_back_to
from vllm._upstream.engine.multiprocessing import engine as upstream
from vllm.engine.hooked import special_kwargs_of
from vllm.engine.multiprocessing import RPCError, RPCLoadAdapterRequest
from vllm.engine.multiprocessing.hook_calls import RPCHookCall, RPCHookResult
from vllm.engine.outlines import compile_grammars
from vllm.outputs import RequestOutput

_IDLE_SECONDS = 0.001


class MQLLMEngine(upstream.MQLLMEngine):
    """Upstream's `MQLLMEngine`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        compile_grammars(self.engine)

    def engine_step(self) -> list[RequestOutput]:
        """Upstream's `engine_step`, which doesn't spin while every unfinished sequence waits for a caller."""
        outputs: list[RequestOutput] = super().engine_step()
        if special_kwargs_of(self.engine) is not None and self.engine.is_waiting_for_callers():
            time.sleep(_IDLE_SECONDS)
        return outputs

    def _handle_load_adapter_request(self, request: RPCLoadAdapterRequest) -> None:
        """Load an adapter as upstream does, or answer a hook call, which arrives the same way."""
        if not isinstance(request, RPCHookCall):
            super()._handle_load_adapter_request(request)
            return
        try:
            value = getattr(self.engine, request.method)(*request.arguments)
        except Exception as error:
            self._send_outputs(RPCError(request.request_id, is_engine_errored=False, exception=error))
        else:
            self._send_outputs(RPCHookResult(request.request_id, value))


# Upstream's run_mp_engine looks the class up by this name in its own module.
upstream.MQLLMEngine = MQLLMEngine


def run_mp_engine(*args: Any, **kwargs: Any) -> None:
    """Upstream's `run_mp_engine`; a new process imports it from here, and so runs our engine."""
    upstream.run_mp_engine(*args, **kwargs)


__getattr__ = fall_back_to("vllm._upstream.engine.multiprocessing.engine")
