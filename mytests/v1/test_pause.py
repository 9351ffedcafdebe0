# SPDX-License-Identifier: Apache-2.0
"""Upstream's pauses and resets with trees in flight: nothing runs during a pause, and nothing is lost by it."""

import asyncio
import dataclasses
from typing import Any, get_args

import pytest
from forkjoin_engine import GREEDY

from mytests.harness.sure import sure_prompts
from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, finished, plan
from mytests.harness.tiers import full
from mytests.harness.v1.async_engine import last, opened
from mytests.harness.v1.releases import since
from sequence_hooks import SpecialKwargs
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason, PauseMode
from vllm.v1.request import RequestStatus

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")
TREES: dict[str, tuple[SpecialKwargs, dict[str, str], str]] = {
    "promise": (HOOKS, {"r": "a!b!c", "r_child_0": "CDE", "r_child_1": "FG"}, "aCDEbFGc"),
    "sync": (SYNC_HOOKS, {"r": "a!b!.c", "r_child_0": "CDE", "r_child_1": "FGHIJ"}, "abCDE\nFGHIJc"),
    "manual": (MANUAL, {"r": "a!.bcd", "r_child_0": "CDE"}, "aCDEbcd"),
}
TREES |= {
    f"{name}, injected": (dataclasses.replace(hooks, child_merge_strategy="kv_inject"), script, text)
    for name, (hooks, script, text) in TREES.items()
}


def pause(engine: SurgicalEngine, mode: PauseMode, clears: bool, script: Any) -> None:
    """As upstream's engine core does it, which calls a pause complete once its scheduler has no requests."""
    if mode == "abort":
        aborted = engine.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
        told = [EngineCoreOutput(each.request_id, [], finish_reason=FinishReason.ABORT) for each in aborted]
        engine._hand_out(EngineCoreOutputs(outputs=told))
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL if mode == "keep" else PauseState.PAUSED_NEW)
    engine.run_until(engine.is_idle, script)
    if clears:
        assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        engine.kv.blocks.clear()


def resume_all(engine: SurgicalEngine) -> None:
    for request_id in engine.awaiting():
        engine.resume(request_id, None)


@since(32, "a paused engine goes on with requests that hold KV")
@pytest.mark.usefixtures("each_mode")
@pytest.mark.parametrize("clears", [False, True])
@pytest.mark.parametrize("mode", get_args(PauseMode))
@pytest.mark.parametrize("tree", TREES)
def test_a_pause_at_any_step(tree: str, mode: PauseMode, clears: bool) -> None:
    """Whoever is resumed, or comes, during a pause goes on after it; all others as the mode says."""
    hooks, texts, text = TREES[tree]
    script = plan(**texts, s="xyz")
    for num_steps in range(12):
        engine = SurgicalEngine(hooks)
        engine.add()
        for _ in range(num_steps):
            engine.step(script)
        pause(engine, mode, clears, script)
        resume_all(engine)
        engine.add("s")
        before = engine.statuses()
        assert engine.is_idle() and engine.step(script) == [] and engine.statuses() == before
        assert mode == "keep" or not engine.queues()["running"]
        engine.scheduler.set_pause_state(PauseState.UNPAUSED)
        while not engine.is_idle():
            engine.run(script)
            resume_all(engine)
        assert finished(engine, "s").text == "xyz"
        # What it would be without a pause, or what there was of it.
        ended = finished(engine)
        assert (ended.finish_reason, ended.text) == ("stop", text) or (mode, ended.finish_reason) == ("abort", "abort")
        engine.assert_empty()


@pytest.mark.usefixtures("each_mode")
def test_a_sequence_that_is_aborted_in_a_pause_is_not_resumed_after_it() -> None:
    """What its caller gave is dropped."""
    engine, script = SurgicalEngine(MANUAL), plan(r="a.z")
    engine.add()
    engine.run(script)
    pause(engine, "keep", False, script)
    resume_all(engine)
    engine.abort("r")
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.assert_empty()


Call = tuple[str, dict[str, Any]]
"""A method of the asynchronous engine, and its arguments."""

PAUSES: list[tuple[Call, str]] = [
    *(
        (("pause_generation", {"mode": mode, "clear_cache": False}), "resume_generation")
        for mode in get_args(PauseMode)
    ),
    *((("pause_generation", {"mode": mode, "clear_cache": True}), "resume_generation") for mode in get_args(PauseMode)),
    *((("sleep", {"level": 1, "mode": mode}), "wake_up") for mode in ("wait", "keep")),
]
RESETS: list[Call] = [
    ("reset_prefix_cache", {}),
    ("reset_prefix_cache", {"reset_running_requests": True}),
    ("collective_rpc", {"method": "reload_weights"}),
]


async def answers(engine: Any, pause: Call | None, then: str | None) -> list[Any]:
    """Completions of requests of which one waits for its caller when the engine is paused or reset."""
    prompts = sure_prompts(3, 11, "sync")
    jobs = {each: asyncio.create_task(last(engine.generate(each, GREEDY, each))) for each in prompts}
    while not engine.sequences_awaiting_resume():
        await asyncio.sleep(0.01)
    if pause is not None:
        await getattr(engine, pause[0])(**pause[1])
    if then is not None:
        resumed = [jobs[waiting.request_id] for waiting in engine.sequences_awaiting_resume()]
        for waiting in engine.sequences_awaiting_resume():
            await engine.resume_sequence(waiting.request_id)
        await engine.collective_rpc("reload_weights")
        await asyncio.sleep(0.1)
        assert not any(each.done() for each in resumed)
        await getattr(engine, then)()
    while not all(each.done() for each in jobs.values()):
        for waiting in engine.sequences_awaiting_resume():
            await engine.resume_sequence(waiting.request_id)
        await asyncio.sleep(0.01)
    return [each.result().outputs[0] for each in jobs.values()]


@pytest.mark.model
@pytest.mark.paths
@pytest.mark.parametrize("strategy", ["concatenate", full("kv_inject")])
def test_a_running_engine_is_paused_and_its_caches_are_reset(strategy: str) -> None:
    """Weights are loaded anew meanwhile; each request ends as it would have, or is aborted."""
    with opened({}, "sync", sync_resume="manual", child_merge_strategy=strategy) as running:
        expected = [each.text for each in running.run(answers(running.engine, None, None))]
        for call, then in [*PAUSES, *((each, None) for each in RESETS)]:
            ended = running.run(answers(running.engine, call, then))
            if call[1].get("mode") == "abort":
                assert {each.finish_reason for each in ended} == {"abort"}
            elif strategy == "concatenate" or call[1].get("clear_cache") is False:
                assert [each.text for each in ended] == expected, call
            else:
                # Injected KV that is lost is computed from the context.
                assert {each.finish_reason for each in ended} == {"stop"}
