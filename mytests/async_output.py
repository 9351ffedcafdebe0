# SPDX-License-Identifier: Apache-2.0
"""Asynchronous output processing on the CPU, where upstream has it switched off.

A step's outputs are then processed while the next step runs, by a callback that upstream's model runner
for GPUs calls; here the executor does, right after the forward pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from vllm.engine.llm_engine import LLMEngine
from vllm.platforms.cpu import CpuPlatform


@contextmanager
def allowed() -> Iterator[None]:
    """Engines that are made meanwhile process their outputs asynchronously."""
    with patch.object(CpuPlatform, "is_async_output_supported", lambda *_: True):
        yield


def call_back(engine: LLMEngine) -> None:
    """Have an engine's executor call back as the model runner for GPUs does."""
    executor = engine.model_executor
    execute_model = executor.execute_model

    def execute(execute_model_req: Any) -> Any:
        # The model input of the CPU has no place for it.
        callback, execute_model_req.async_callback = execute_model_req.async_callback, None
        output = execute_model(execute_model_req=execute_model_req)
        if callback is not None:
            callback()
        return output

    executor.execute_model = execute
