# SPDX-License-Identifier: Apache-2.0
"""Rare meetings of hooks with what upstream's scheduler does: preemption, grammars, resets of its cache, aborts."""

import dataclasses
import logging
from typing import Any

import pytest

from mytests.harness.surgical import HOOKS, PROMISE, SYNC_HOOKS, SurgicalEngine, begun, finished, plan
from mytests.harness.v1.configuration import base_config
from mytests.harness.v1.releases import RELEASE, since
from sequence_hooks.kv.eviction import EvictionCandidate
from sequence_hooks.tree.integrity import IntegrityError
from sequence_hooks.v1.core.children import ChildRequests
from sequence_hooks.v1.resuming import resumption
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

CHILDREN = {"a": "AAA", "r": "R", "s": "S"}
"""What each child of a request samples."""


def test_a_promise_of_a_sequence_that_was_preempted_meanwhile() -> None:
    """Its token was in flight when it lost its KV, so its child shares nothing, and computes all of it."""
    engine = SurgicalEngine(SYNC_HOOKS, num_blocks=5, max_num_seqs=4, is_async=True, max_model_len=32)
    engine.add("a", prompt="pppp")
    engine.add("r", prompt="qqqq")
    script = plan(a="abcdefgh", r="xxxx!.z", r_child_0="B")
    engine.run_until(lambda: "r_child_0" in engine.statuses(), script)
    assert engine.num_preemptions() == 1 and not engine.scheduler.kv.forks.children
    engine.run(script)
    assert (finished(engine, "r").text, finished(engine, "a").text) == ("xxxxBz", "abcdefgh")


def test_a_joined_sequence_gives_up_kv_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs, and all are joined and need blocks: one in the queue computes its context anew."""
    hooks = dataclasses.replace(SYNC_HOOKS, blocked_kv_policy="preserve")
    engine = SurgicalEngine(hooks, num_blocks=10, max_num_seqs=2, max_model_len=40)
    for name, length in {"a": 14, "r": 6, "s": 12}.items():
        engine.add(name, prompt=name * length)
    evict, victims = engine.scheduler.kv.evict, []

    def note(victim: EvictionCandidate[Request]) -> None:
        victims.append(engine.statuses()[victim.holder.request_id])
        evict(victim)

    monkeypatch.setattr(engine.scheduler.kv, "evict", note)
    children = {f"{name}_child_{number}": text for name, text in CHILDREN.items() for number in range(3)}
    engine.run(plan(a="x!!!.yz", r="xx!!!.yz", s="!!!.yz", **children))
    assert victims == ["WAITING"]
    joined = {name: finished(engine, name).text for name in CHILDREN}
    assert joined == {"a": "xAAA\nAAA\nAAAyz", "r": "xxR\nR\nRyz", "s": "S\nS\nSyz"}


@pytest.mark.usefixtures("each_mode")
@pytest.mark.parametrize(
    ("asked", "skips"), [({"prompt_logprobs": 1}, False), ({"skip_reading_prefix_cache": True}, True)]
)
def test_after_a_join_prompt_logprobs_keep_nobody_from_the_prefix_cache(asked: dict[str, Any], skips: bool) -> None:
    """They were told at the first prefill; who does not want the cache for other reasons stays without it."""
    engine = SurgicalEngine(HOOKS)
    request, script = engine.add("r", **asked), plan(r="!ab", r_child_0="B")
    engine.run_until(lambda: bool(engine.scheduler.blocked), script)
    assert request.skip_reading_prefix_cache
    engine.run_until(lambda: engine.num_sampled("r") == 2, script)
    assert request.skip_reading_prefix_cache == skips
    engine.run(script)


def test_one_that_runs_alone_is_not_preempted_for_itself() -> None:
    """It would begin again and come as far, for ever; what waits gives up KV for it, under "preserve" too."""
    hooks = dataclasses.replace(SYNC_HOOKS, blocked_kv_policy="preserve", child_prefix_token_ids=tuple(map(ord, "##")))
    layers = ("full", "state")
    engine = SurgicalEngine(hooks, layers=layers, num_blocks=17, max_model_len=32, max_num_batched_tokens=2)
    for name, length in {"r": 9, "s": 12}.items():
        engine.add(name, prompt=name * length)
    children = {f"{name}_child_{number}": name.upper() * 16 for name in "rs" for number in range(2)}
    engine.run(plan(r="!!.yz", s="!!.yz", **children))


@pytest.mark.usefixtures("each_mode")
def test_no_kv_survives_a_reset_of_upstreams_cache() -> None:
    """With new weights, say: whoever runs, is BLOCKED or has a fork computes its context anew, and nothing is lost."""
    engine = SurgicalEngine(SYNC_HOOKS, max_num_seqs=2)
    engine.add()
    engine.add("s")
    script = plan(r="a!!.b", r_child_0="CC", r_child_1="DD", s="uvwxyzuvwxyz")
    engine.run_until(lambda: engine.statuses().get("r") == "BLOCKED", script)
    assert engine.scheduler.kv.forks.children
    engine.kv.blocks.clear()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert not engine.scheduler.kv.forks.children and engine.num_free_blocks() == engine.num_blocks
    engine.run(script)
    assert (finished(engine, "r").text, finished(engine, "s").text) == ("aCC\nDDb", "uvwxyzuvwxyz")


@since(30, "the scheduler asks grammars itself")
@pytest.mark.usefixtures("each_mode")
def test_a_promise_that_a_grammar_does_not_accept_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream asks the grammar after the token: the parent is BLOCKED already, and its child spawned."""
    engine = SurgicalEngine(HOOKS)
    engine.add()

    def accepts(request: Request, token_ids: list[int]) -> bool:
        return PROMISE not in token_ids

    monkeypatch.setattr(engine.scheduler.structured_output_manager, "accept_tokens", accepts)
    engine.run_until(lambda: "r" in engine.outputs and engine.outputs["r"].finished, plan(r="a!b", r_child_0="C" * 20))
    assert finished(engine).finish_reason == "error"
    assert engine.statuses() == {}
    engine.assert_empty()


def test_childrens_grammars_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for them as any request does, and their tree counts as one that upstream has deferred."""
    compiled = []

    def grammar_init(manager: StructuredOutputManager, request: Request) -> None:
        compiled.append(request.request_id)

    monkeypatch.setattr(StructuredOutputManager, "grammar_init", grammar_init)
    monkeypatch.setattr(SamplingParams, "verify", lambda params, *engine: None)
    hooks = dataclasses.replace(SYNC_HOOKS, child_sampling_params={"structured_outputs": {"choice": ["C"]}})
    engine = SurgicalEngine(hooks)
    engine.add()
    engine.run_until(lambda: engine.statuses()["r"] == "BLOCKED", plan(r="a!!.b"))
    assert compiled == ["r_child_0", "r_child_1"]
    assert [engine.statuses()[child] for child in compiled] == ["WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"] * 2
    stats = engine.scheduler_stats[-1]
    # Before 0.31 upstream does not tell those that it defers from others that wait.
    num_deferred = int(RELEASE >= (0, 31))
    assert (stats.num_waiting_reqs, stats.num_skipped_waiting_reqs) == (1 - num_deferred, num_deferred)
    engine.abort("r")
    engine.assert_empty()


def test_a_resumption_that_comes_after_an_abort_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """The front end had checked it; the client was gone when it reached the core."""
    engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, sync_resume="manual"))
    engine.add()
    engine.run_until(lambda: engine.awaiting() == ["r_child_0"], plan(r="a!bcdefgh", r_child_0="C."))
    late = resumption(engine.output_processor, "r_child_0", [7], engine.max_model_len, engine.vocab_size)
    # Upstream sends what has a request's id to that request's engine, where there are several.
    assert late.request_id == "r"
    engine.abort("r")
    with caplog.at_level(logging.DEBUG, "vllm"):
        engine.scheduler.add_request(Request.from_engine_core_request(late, engine._hasher))
    assert not engine.scheduler.requests
    engine.assert_empty()


def test_the_engine_stays_awake_while_something_is_to_be_told() -> None:
    """Some releases drop what a step without tokens would have told."""
    engine = SurgicalEngine(SYNC_HOOKS)
    engine.add()
    engine.run_until(lambda: engine.statuses().get("r") == "BLOCKED", plan(r="a!.b", r_child_0="CCC"))
    engine.abort("r")
    without_tokens = engine.scheduler.schedule()
    engine.worker.run(without_tokens, lambda request_id, context: 0)
    assert not without_tokens.total_num_scheduled_tokens
    assert engine.scheduler.has_requests()
    engine.assert_empty()


def test_strays_are_found() -> None:
    """A request that is in no queue, and one that is BLOCKED for the scheduler alone."""
    engine = SurgicalEngine(SYNC_HOOKS)
    with begun(engine, plan(r="a!.b", r_child_0="CCC"), lambda: engine.statuses().get("r") == "BLOCKED"):
        parent = engine.scheduler.blocked.pop("r")
        with pytest.raises(IntegrityError, match=r"\['r'\] are in a queue or in the map of requests, not in both"):
            engine.scheduler.check_integrity()
        engine.scheduler.blocked["r"] = parent
        child = engine.scheduler.running.pop()
        engine.scheduler.blocked[child.request_id] = child
        with pytest.raises(IntegrityError, match=r"\['r_child_0'\] are BLOCKED in the scheduler or in the trees"):
            engine.scheduler.check_integrity()
        del engine.scheduler.blocked[child.request_id]
        engine.scheduler.running.append(child)


def test_the_scheduler_needs_hooks() -> None:
    """It is for nothing else."""
    with pytest.raises(ValueError, match="this scheduler is for sequence hooks, and none are configured"):
        ChildRequests.of(base_config(), StructuredOutputManager(base_config()))
