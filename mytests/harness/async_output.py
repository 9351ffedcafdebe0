# SPDX-License-Identifier: Apache-2.0
"""Asynchronous output processing on the CPU: the executor calls back after the forward pass, as on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from vllm.engine.llm_engine import LLMEngine
from vllm.platforms.cpu import CpuPlatform


@contextmanager
def allowed() -> Iterator[None]:
    """Engines created inside this context process their outputs asynchronously."""
    with patch.object(CpuPlatform, "is_async_output_supported", lambda *_: True):
        yield


def call_back(engine: LLMEngine) -> None:
    """Make an engine's executor call the callback, as the GPU model runner does."""
    executor = engine.model_executor
    execute_model = executor.execute_model

    def execute(execute_model_req: Any) -> Any:
        # The CPU's model input has no field for the callback.
        callback, execute_model_req.async_callback = execute_model_req.async_callback, None
        output = execute_model(execute_model_req=execute_model_req)
        if callback is not None:
            callback()
        return output

    executor.execute_model = execute
