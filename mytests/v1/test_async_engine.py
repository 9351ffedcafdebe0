# SPDX-License-Identifier: Apache-2.0
"""The plug-in on upstream's asynchronous engine, with the engine core and its workers in processes of their own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

import pytest
from forkjoin_engine import GREEDY, MODEL_FOLDER, hooks_for
from forkjoin_task import EOS, held_out_prompts, is_correct

import mytests.environment  # noqa: F401
from sequence_hooks.v1 import engine_args
from sequence_hooks.v1.resuming import resume_sequence_async, sequences_awaiting_resume
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

Work = Callable[[AsyncLLM], Coroutine[Any, Any, None]]


ALONE: Mapping[str, int] = {}
PARALLEL = [ALONE, {"tensor_parallel_size": 2}, {"data_parallel_size": 2}]


def run(work: Work, parallel: Mapping[str, int] = ALONE, **fields: Any) -> None:
    """Do ``work`` with an engine, whose core runs in another process.

    Args:
        parallel: More arguments of the engine.
        fields: Those of its hooks.
    """

    async def with_engine() -> None:
        arguments = engine_args(
            hooks_for("sync", **fields), dtype="float32", enforce_eager=True, max_model_len=512, **parallel
        )
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(MODEL_FOLDER), **arguments))
        try:
            await asyncio.wait_for(work(engine), 240)
            assert not engine.output_processor.request_states
        finally:
            engine.shutdown()

    asyncio.run(with_engine())


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests look into the engine core, and have it in theirs."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")


async def deltas(engine: AsyncLLM, request_id: str, prompt: str) -> AsyncIterator[Any]:
    """The outputs of a request that streams its children, too."""
    params = GREEDY.clone()
    params.output_kind, params.extra_args = RequestOutputKind.DELTA, {"stream_children": True}
    async for output in engine.generate(prompt, params, request_id):
        yield output


@pytest.mark.parametrize("parallel", PARALLEL, ids=str)
def test_streams_of_trees_beside_aborted_ones(parallel: Mapping[str, int]) -> None:
    """Each tells all its tokens; a caller that goes away ends its whole tree, and nobody else's."""

    async def work(engine: AsyncLLM) -> None:
        prompts = held_out_prompts(12, 11, "sync")

        async def whole(number: int) -> tuple[str, set[str]]:
            text, children = "", set()
            async for output in deltas(engine, f"r{number}", prompts[number]):
                text += "".join(completion.text for completion in output.outputs)
                children |= {delta.request_id for delta in output.child_deltas}
            return text, children

        async def gone(number: int) -> None:
            stream = deltas(engine, f"r{number}", prompts[number])
            async for output in stream:
                if output.child_deltas:
                    break
            await stream.aclose()  # type: ignore[attr-defined]

        jobs = [gone(number) if number % 3 == 0 else whole(number) for number in range(len(prompts))]
        for number, told in enumerate(await asyncio.gather(*jobs)):
            if told is not None:
                text, children = told
                assert is_correct(prompts[number], text.removesuffix(EOS))
                assert {child.rsplit("_child_", 1)[0] for child in children} == {f"r{number}"}

    run(work, parallel)


def test_a_caller_resumes_a_sequence_that_waits() -> None:
    """What it gives comes after the children's results; what does not fit is refused."""

    async def work(engine: AsyncLLM) -> None:
        (prompt,) = held_out_prompts(1, 12, "sync")
        job = asyncio.create_task(_last(deltas(engine, "r", prompt)))
        while not (waiting := sequences_awaiting_resume(engine)):
            await asyncio.sleep(0.05)
        assert waiting == ["r"]
        with pytest.raises(ValueError, match="room for"):
            await resume_sequence_async(engine, "r", [5] * 600)
        with pytest.raises(ValueError, match=r"those that wait are \['r'\]"):
            await resume_sequence_async(engine, "q")
        await resume_sequence_async(engine, "r", [6])
        output = await job
        assert [segment.origin for segment in output.outputs[0].segments][-2:] == ["inserted", "sampled"]

    run(work, sync_resume="manual")


async def _last(outputs: AsyncIterator[Any]) -> Any:
    async for output in outputs:
        last = output
    return last


def test_a_request_with_bad_limits_is_refused() -> None:
    """Its caller gets the error, and others are served."""

    async def work(engine: AsyncLLM) -> None:
        params = GREEDY.clone()
        params.extra_args = {"max_children": 1000}
        with pytest.raises(VLLMValidationError, match="max_children is 1000; the engine allows at most"):
            await _last(engine.generate("fork 1 stone\n", params, "r"))
        (prompt,) = held_out_prompts(1, 13, "sync")
        output = await _last(engine.generate(prompt, GREEDY, "s"))
        assert is_correct(prompt, output.outputs[0].text.removesuffix(EOS))

    run(work)
