# SPDX-License-Identifier: Apache-2.0
"""The plug-in on upstream's asynchronous engine, with the engine core and its workers in processes of their own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

import pytest
from forkjoin_engine import GREEDY, MODEL_FOLDER, hooks_for
from forkjoin_task import EOS, is_correct

from mytests.sure import sure_prompts
from mytests.ties import NUM_LOGPROBS, is_same, logprobs_of
from sequence_hooks.v1 import engine_args
from sequence_hooks.v1.frontend.outputs import CompletionOutput
from sequence_hooks.v1.resuming import resume_sequence_async, sequences_awaiting_resume
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

pytestmark = [pytest.mark.model, pytest.mark.floats]

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
        prompts = sure_prompts(12, 11, "sync")

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


@pytest.mark.parametrize("rule", ["sequential", "overlap"])
def test_injected_kv_on_several_workers(rule: str) -> None:
    """Each copies the KV of its heads, and trees come out as with one worker."""
    prompts = sure_prompts(12, 13, "sync")
    params = GREEDY.clone()
    params.logprobs = NUM_LOGPROBS
    told: list[list[CompletionOutput]] = []

    async def work(engine: AsyncLLM) -> None:
        jobs = (_last(engine.generate(prompt, params, f"r{number}")) for number, prompt in enumerate(prompts))
        told.append([output.outputs[0] for output in await asyncio.gather(*jobs)])
        assert all(join.num_prefill < join.num_merged for each in told[-1] for join in each.joins)

    for parallel in PARALLEL[:2]:
        run(work, parallel, child_merge_strategy="kv_inject", position_rule=rule)
    alone, spread = told
    # Injected KV is not what the model was trained for, so it need not be sure of what comes after.
    same = [is_same(each.token_ids, one.token_ids, logprobs_of(one)) for one, each in zip(alone, spread, strict=True)]
    assert sum(same) > len(same) / 2


@pytest.mark.parametrize("parallel", [ALONE, {"data_parallel_size": 2}], ids=str)
def test_callers_resume_sequences_that_wait(parallel: Mapping[str, int]) -> None:
    """What they give comes after the children's results, whichever engine waits; what does not fit is refused."""

    async def work(engine: AsyncLLM) -> None:
        prompts = dict(zip("qr", sure_prompts(2, 12, "sync"), strict=True))
        jobs = [asyncio.create_task(_last(deltas(engine, name, prompt))) for name, prompt in prompts.items()]
        while len(waiting := sequences_awaiting_resume(engine)) < len(jobs):
            await asyncio.sleep(0.05)
        assert sorted(each.request_id for each in waiting) == ["q", "r"]
        with pytest.raises(ValueError, match="room for"):
            await resume_sequence_async(engine, "r", [5] * 600)
        with pytest.raises(ValueError, match=r"those that wait are \['q', 'r'\]"):
            await resume_sequence_async(engine, "s")
        for name in prompts:
            await resume_sequence_async(engine, name, [6])
        for output in await asyncio.gather(*jobs):
            assert [segment.origin for segment in output.outputs[0].segments][-2:] == ["inserted", "sampled"]

    run(work, parallel, sync_resume="manual")


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
        (prompt,) = sure_prompts(1, 13, "sync")
        output = await _last(engine.generate(prompt, GREEDY, "s"))
        assert is_correct(prompt, output.outputs[0].text.removesuffix(EOS))

    run(work)
