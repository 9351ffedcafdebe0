# SPDX-License-Identifier: Apache-2.0
"""What stands in front of an engine: `LLM`, `AsyncLLMEngine`, and a thread that encodes what callers give."""

import asyncio
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from forkjoin_engine import MODEL_FOLDER

from mytests.harness.surgical import HOOKS, SYNC_HOOKS, CharTokenizer
from mytests.harness.v0.configuration import MANUAL, upstream_does
from sequence_hooks.serving.trees import TreeStream, tree_of
from sequence_hooks.tree import resume
from sequence_hooks.tree.resume import ResumeRoom, ids_of
from vllm.config import SpecialKwargs
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.engine.multiprocessing.engine import MQLLMEngine
from vllm.entrypoints.llm import LLM
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams


class TestAsyncLLMEngine:
    def test_hooks_are_an_argument_as_with_the_plug_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """They take the place of those in the engine's arguments, which stay as they are."""
        made: list[AsyncEngineArgs] = []
        make = classmethod(lambda cls, args, **kwargs: made.append(args))
        upstream_does(monkeypatch, AsyncLLMEngine, "from_engine_args", make)
        args = AsyncEngineArgs(str(MODEL_FOLDER))
        AsyncLLMEngine.from_engine_args(args, special_kwargs={"sync_token_id": 3, "sync_resume": "manual"})
        AsyncLLMEngine.from_engine_args(args, start_engine_loop=False)
        assert [each.special_kwargs for each in made] == [MANUAL, None]

    def test_it_passes_calls_on(self) -> None:
        """It does so between two steps of the event loop."""
        engine = AsyncLLMEngine.__new__(AsyncLLMEngine)
        calls: list[Any] = []
        engine.engine = SimpleNamespace(
            resume_sequence=lambda *args: calls.append(args),
            sequences_awaiting_resume=lambda: ["r"],
            room_to_resume=lambda request_id: ResumeRoom(2, None),
            get_tokenizer_async=AsyncMock(return_value=CharTokenizer()),
        )
        for given in ([1], "ab", None):
            asyncio.run(engine.resume_sequence("r", given))
        assert calls == [("r", (1,)), ("r", (97, 98)), ("r", ())]
        assert asyncio.run(engine.sequences_awaiting_resume()) == ["r"]

    @pytest.mark.parametrize("waiting", [True, False])
    def test_it_does_not_spin_while_a_caller_is_awaited(self, waiting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each step then sleeps a little."""
        engine = AsyncLLMEngine.__new__(AsyncLLMEngine)
        config = SimpleNamespace(special_kwargs=MANUAL)
        engine.engine = SimpleNamespace(vllm_config=config, is_waiting_for_callers=lambda virtual_engine: waiting)
        sleep = AsyncMock()
        upstream_does(monkeypatch, AsyncLLMEngine, "engine_step", AsyncMock(return_value=True))
        monkeypatch.setattr("vllm.engine.async_llm_engine.asyncio.sleep", sleep)
        assert asyncio.run(engine.engine_step(0)) is True
        assert sleep.called is waiting


class TestLLM:
    @pytest.mark.rule(3)
    @pytest.mark.parametrize("hooks", [None, SYNC_HOOKS, MANUAL])
    def test_only_what_nobody_could_resume_is_refused(
        self, hooks: SpecialKwargs | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`LLM` blocks its caller until all requests are finished."""
        llm, added = LLM.__new__(LLM), []
        llm.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(special_kwargs=hooks))
        upstream_does(monkeypatch, LLM, "_validate_and_add_requests", lambda self, prompt: added.append(prompt))
        refused = pytest.raises(ValueError, match='sync_resume is "manual"') if hooks is MANUAL else nullcontext()
        with refused:
            llm._validate_and_add_requests("p")
        assert added == ["p"] * (hooks is not MANUAL)

    @pytest.mark.parametrize("hooks", [None, HOOKS])
    @pytest.mark.parametrize("given", [True, False])
    def test_its_bar_shows_children(
        self, hooks: SpecialKwargs | None, given: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It does so beside upstream's figures, if there are hooks and a bar is asked for."""
        shown: list[str] = []

        def run(self: Any, use_tqdm: Any) -> list[Any]:
            if callable(use_tqdm):
                with use_tqdm(total=1, postfix="speed", file=io.StringIO()) as bar:
                    scheduler.trees.stats.num_spawned += 3
                    shown.append(bar.format_dict["postfix"])
            return []

        scheduler = SimpleNamespace(trees=SimpleNamespace(stats=SimpleNamespace(num_spawned=2)))
        upstream_does(monkeypatch, LLM, "_run_engine", run)
        llm: Any = LLM.__new__(LLM)
        llm.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(special_kwargs=hooks), scheduler=[scheduler])
        assert llm._run_engine(use_tqdm=given) == []
        assert shown == (["speed, children: 3"] if given and hooks else [])


def test_the_event_loop_goes_on_while_a_text_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are served meanwhile, and their tokenizer is not used for it."""
    going_on = threading.Event()

    class SlowTokenizer(CharTokenizer):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            assert self is not tokenizer and going_on.wait(60)
            return super().encode(text, add_special_tokens)

    tokenizer = SlowTokenizer()

    async def resume_beside_another() -> tuple[int, ...]:
        resumed = asyncio.create_task(ids_of("ab", ResumeRoom(20, None), AsyncMock(return_value=tokenizer)))
        await asyncio.sleep(0)
        going_on.set()
        return await resumed

    # A process forked from one that has encoded a text, as mutmut's are, has none of its threads.
    with ThreadPoolExecutor(1) as encoder:
        monkeypatch.setattr(resume, "_encoder", encoder)
        assert asyncio.run(resume_beside_another()) == (97, 98)


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


def test_a_stand_in_behind_the_asynchronous_engine(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_stand_in_in_a_process_of_its_own() -> None:
    """A step of the process is a step of the engine."""
    process = MQLLMEngine.__new__(MQLLMEngine)
    process.engine = StandIn()
    process.engine.request_ids.append("r")
    assert [output.request_id for output in process.engine_step()] == ["r"]


def test_a_stand_in_behind_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are added, and the progress bar is upstream's."""
    llm, added = LLM.__new__(LLM), []
    llm.llm_engine = StandIn()
    upstream_does(monkeypatch, LLM, "_validate_and_add_requests", lambda self, prompt: added.append(prompt))
    upstream_does(monkeypatch, LLM, "_run_engine", lambda self, use_tqdm: [use_tqdm])
    llm._validate_and_add_requests("p")
    assert llm._run_engine(use_tqdm=True) == [True] and added == ["p"]


def test_a_stand_in_behind_a_server() -> None:
    """Its outputs and completions may be of any class with upstream's fields."""
    completion: Any = SimpleNamespace(index=0, text="a", token_ids=[1], finish_reason="stop")

    async def outputs() -> Any:
        yield SimpleNamespace(outputs=[completion])

    async def watch() -> list[Any]:
        return [output.outputs async for output in TreeStream({}, 1).watched(outputs())]

    assert asyncio.run(watch()) == [[completion]]
    assert tree_of(completion) == {}
