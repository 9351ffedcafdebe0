# SPDX-License-Identifier: Apache-2.0
"""Upstream's asynchronous engine with the plug-in, whose core runs in other processes, and the tiny model."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from forkjoin_engine import MODEL_FOLDER, hooks_for
from forkjoin_task import Mode

from sequence_hooks import SpecialKwargs
from sequence_hooks.v1 import AsyncLLM
from vllm import envs
from vllm.engine.arg_utils import AsyncEngineArgs

Found = TypeVar("Found")


class Running:
    """An engine, and the loop that it belongs to."""

    def __init__(self, parallel: Mapping[str, int], mode: Mode, **fields: Any) -> None:
        self._runner = asyncio.Runner()
        arguments: Any = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, **parallel}
        self.engine = self._runner.run(
            _started(AsyncEngineArgs(str(MODEL_FOLDER), **arguments), hooks_for(mode, **fields))
        )

    def run(self, work: Coroutine[Any, Any, Found]) -> Found:
        """Wait for ``work``; afterwards no request is left."""
        found = self._runner.run(asyncio.wait_for(work, 240))
        assert not self.engine.output_processor.request_states
        return found

    def close(self) -> None:
        """End the engine's processes."""
        self.engine.shutdown()
        self._runner.close()


async def _started(arguments: AsyncEngineArgs, hooks: SpecialKwargs) -> Any:
    return AsyncLLM.from_engine_args(arguments, special_kwargs=hooks)


@contextmanager
def opened(parallel: Mapping[str, int], mode: Mode, **fields: Any) -> Iterator[Running]:
    """An engine, whose core runs in other processes, until the block ends; ``fields`` are those of its hooks."""
    with pytest.MonkeyPatch.context() as patch:
        # Other tests look into the engine core, and have it in their process.
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
        envs.disable_envs_cache()
        running = Running(parallel, mode, **fields)
    try:
        yield running
    finally:
        running.close()


async def last(outputs: AsyncIterator[Any]) -> Any:
    """The last of them."""
    async for output in outputs:
        found = output
    return found
