# SPDX-License-Identifier: Apache-2.0
"""With hooks off our classes ask nothing of an engine that upstream's do not, so a stand-in for one will do."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sequence_hooks.serving.trees import TreeStream, tree_of
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.engine.multiprocessing.engine import MQLLMEngine
from vllm.entrypoints.llm import LLM
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams


class StandIn:
    """Like the one in upstream's own tests, without config or scheduler. Each request finishes in one step."""

    def __init__(self) -> None:
        self.parallel_config = SimpleNamespace(pipeline_parallel_size=1)
        self.model_config = SimpleNamespace(use_async_output_proc=False)
        self.request_ids: list[str] = []

    def step(self) -> list[RequestOutput]:
        finished, self.request_ids = self.request_ids, []
        return [RequestOutput(request_id, None, [], None, [], finished=True) for request_id in finished]

    async def step_async(self, virtual_engine: int) -> list[RequestOutput]:
        return self.step()

    async def add_request_async(self, request_id: str, **_: Any) -> None:
        self.request_ids.append(request_id)

    def has_unfinished_requests_for_virtual_engine(self, virtual_engine: int) -> bool:
        return bool(self.request_ids)

    async def stop_remote_worker_execution_loop_async(self) -> None:
        pass


class AsyncOverStandIn(AsyncLLMEngine):
    """Made as upstream's tests make theirs."""

    _engine_class: type = StandIn  # type: ignore[assignment]


def test_behind_the_asynchronous_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go through its background loop, one after the other."""
    monkeypatch.setenv("VLLM_USE_V1", "0")

    async def generate() -> list[str]:
        engine = AsyncOverStandIn(log_requests=False)
        told = []
        for request_id in ("r", "s"):
            told += [output.request_id async for output in engine.generate("a prompt", SamplingParams(), request_id)]
        engine.shutdown_background_loop()
        return told

    assert asyncio.run(asyncio.wait_for(generate(), 60)) == ["r", "s"]


def test_in_a_process_of_its_own() -> None:
    """A step of the process is a step of the engine."""
    process = MQLLMEngine.__new__(MQLLMEngine)
    process.engine = StandIn()
    process.engine.request_ids.append("r")
    assert [output.request_id for output in process.engine_step()] == ["r"]


def test_behind_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are added, and the progress bar is upstream's."""
    llm, added = LLM.__new__(LLM), []
    llm.llm_engine = StandIn()
    monkeypatch.setattr(LLM.__bases__[0], "_validate_and_add_requests", lambda self, prompt: added.append(prompt))
    monkeypatch.setattr(LLM.__bases__[0], "_run_engine", lambda self, use_tqdm: [use_tqdm])
    llm._validate_and_add_requests("p")
    assert llm._run_engine(use_tqdm=True) == [True] and added == ["p"]


def test_behind_a_server() -> None:
    """Its outputs and completions may be of any class with upstream's fields."""
    completion: Any = SimpleNamespace(index=0, text="a", token_ids=[1], finish_reason="stop")

    async def outputs() -> Any:
        yield SimpleNamespace(outputs=[completion])

    async def watch() -> list[Any]:
        return [output async for output in TreeStream({}, 1).watched(outputs())]

    assert [output.outputs for output in asyncio.run(watch())] == [[completion]]
    assert tree_of(completion) == {}
