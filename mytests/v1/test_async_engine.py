# SPDX-License-Identifier: Apache-2.0
"""The plug-in on upstream's asynchronous engine, with the engine core and its workers in processes of their own."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from forkjoin_engine import GREEDY, MODEL_FOLDER, hooks_for, open_engine
from forkjoin_task import EOS, is_correct

from mytests.harness.sure import sure_prompts
from mytests.harness.ties import NUM_LOGPROBS, is_same, logprobs_of
from mytests.harness.v1.async_engine import Running, last, opened
from sequence_hooks.config.choices import PositionRule
from sequence_hooks.v1 import AsyncLLM, LLMEngine
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.floats, pytest.mark.full]

ALONE: Mapping[str, int] = {}
TENSORS: Mapping[str, int] = {"tensor_parallel_size": 2}
DATA: Mapping[str, int] = {"data_parallel_size": 2}


@pytest.fixture(scope="module", params=[DATA, TENSORS, ALONE], ids=["data", "tensors", "alone"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    """An engine whose promises join at once; only a sync token waits for a caller."""
    with opened(request.param, "promise", sync_resume="manual") as found:
        yield found


async def deltas(engine: AsyncLLM, request_id: str, prompt: str) -> AsyncIterator[Any]:
    """The outputs of a request that streams its children, too."""
    params = GREEDY.clone()
    params.output_kind, params.extra_args = RequestOutputKind.DELTA, {"stream_children": True}
    async for output in engine.generate(prompt, params, request_id):
        yield output


def endless() -> SamplingParams:
    """No child ends before an abort has come, however busy the machine is, and none waits for a caller."""
    sync = hooks_for("promise").sync_token_id
    assert sync is not None
    params = GREEDY.clone()
    params.min_tokens = params.max_tokens = 120
    params.logit_bias = {sync: -100}
    params.output_kind, params.extra_args = RequestOutputKind.DELTA, {"stream_children": True}
    return params


@pytest.mark.rule(8)
def test_who_still_runs_when_its_request_is_aborted_is_aborted(running: Running) -> None:
    """The last output says so, of the request and of its children."""

    async def aborted() -> Any:
        async for output in running.engine.generate(sure_prompts(1, 13, "promise")[0], endless(), "r"):
            if output.child_deltas:
                await running.engine.abort("r")
        return output.outputs[0]

    completion = running.run(aborted())
    assert completion.finish_reason == "abort"
    assert {(child.failed, child.finish_reason) for child in completion.children} == {(True, "abort")}


@pytest.mark.rule(8)
def test_a_child_is_aborted_alone(running: Running) -> None:
    """Whichever engine has its request; the parent goes on without it."""
    engine, prompts, params = running.engine, sure_prompts(4, 13, "promise"), endless()

    async def without_its_first_child(number: int) -> Any:
        outputs: AsyncIterator[Any] = engine.generate(prompts[number], params, f"a{number}")
        aborted = ""
        async for output in outputs:
            if output.child_deltas and not aborted:
                aborted = output.child_deltas[0].request_id
                await engine.abort(aborted)
        return aborted, output.outputs[0]

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*map(without_its_first_child, range(len(prompts))))

    for aborted, completion in running.run(all_of_them()):
        assert [child.request_id for child in completion.children if child.failed] == [aborted]
        assert completion.finish_reason in ("stop", "length")


def test_streams_of_trees_beside_aborted_ones(running: Running) -> None:
    """Each tells all its tokens; a caller that goes away ends its whole tree, and nobody else's."""
    engine, prompts = running.engine, sure_prompts(12, 11, "promise")

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

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(gone(each) if each % 3 == 0 else whole(each) for each in range(len(prompts))))

    for number, told in enumerate(running.run(all_of_them())):
        if told is not None:
            text, children = told
            assert is_correct(prompts[number], text.removesuffix(EOS))
            assert {child.rsplit("_child_", 1)[0] for child in children} == {f"r{number}"}


def test_callers_resume_sequences_that_wait(running: Running) -> None:
    """What they give comes after the results of children, whichever engine waits; what does not fit is refused."""
    engine = running.engine
    params, sync = GREEDY.clone(), hooks_for("promise").sync_token_id
    assert sync is not None
    params.allowed_token_ids, params.max_tokens = [sync], 2

    async def resumed() -> list[Any]:
        jobs = [asyncio.create_task(last(engine.generate("a", params, name))) for name in "qr"]
        while len(waiting := engine.sequences_awaiting_resume()) < len(jobs):
            await asyncio.sleep(0.05)
        assert sorted(each.request_id for each in waiting) == ["q", "r"]
        with pytest.raises(ValueError, match="room for"):
            await engine.resume_sequence("r", [5] * 600)
        with pytest.raises(ValueError, match=r"those that wait are \['q', 'r'\]"):
            await engine.resume_sequence("s")
        for name in "qr":
            await engine.resume_sequence(name, [6])
        return await asyncio.gather(*jobs)

    for output in running.run(resumed()):
        assert [segment.origin for segment in output.outputs[0].segments] == ["sampled", "inserted", "sampled"]


@pytest.mark.parametrize("rule", ["sequential", "overlap"])
def test_injected_kv_on_several_workers(rule: PositionRule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copies the KV of its heads, and trees come out as with one worker."""
    prompts = sure_prompts(12, 13, "sync")
    fields: dict[str, Any] = {"child_merge_strategy": "kv_inject", "position_rule": rule}
    params = GREEDY.clone()
    params.logprobs = NUM_LOGPROBS
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    alone: Any = open_engine(hooks_for("sync", **fields))
    expected = [output.outputs[0] for output in alone.generate(prompts, params, use_tqdm=False)]
    alone.llm_engine.engine_core.shutdown()
    with opened(TENSORS, "sync", **fields) as running:

        async def answers() -> list[Any]:
            jobs = (last(running.engine.generate(each, params, f"r{number}")) for number, each in enumerate(prompts))
            return await asyncio.gather(*jobs)

        spread = [output.outputs[0] for output in running.run(answers())]
    assert all(join.num_prefill < join.num_merged for each in [*expected, *spread] for join in each.joins)
    # Injected KV is not what the model was trained for, so it need not be sure of what comes after.
    same = [
        is_same(each.token_ids, one.token_ids, logprobs_of(one)) for one, each in zip(expected, spread, strict=True)
    ]
    assert sum(same) > len(same) / 2


def test_a_synchronous_engine_resumes_them_too() -> None:
    """In the steps that its caller takes."""
    hooks, params = hooks_for("promise", sync_resume="manual"), GREEDY.clone()
    assert hooks.sync_token_id is not None
    params.allowed_token_ids, params.max_tokens = [hooks.sync_token_id], 2
    arguments = EngineArgs(str(MODEL_FOLDER), dtype="float32", enforce_eager=True, max_model_len=512)
    engine = LLMEngine.from_engine_args(arguments, special_kwargs=hooks)
    engine.add_request("r", "a", params)
    while not engine.sequences_awaiting_resume():
        engine.step()
    engine.resume_sequence("r", [6])
    while engine.has_unfinished_requests():
        outputs: Any = engine.step()
    assert [segment.origin for segment in outputs[0].outputs[0].segments] == ["sampled", "inserted", "sampled"]
