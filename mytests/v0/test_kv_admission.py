# SPDX-License-Identifier: Apache-2.0
"""Where KV is short: who is admitted, and that nobody waits forever; and `kv_inject`, whose KV is one whole."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import BloomConfig, GPT2Config, PretrainedConfig

from mytests.fuzz.injection_runs import TIGHT, everybody, random_requests, run_and_check
from mytests.harness.injecting import SYNC_INJECT, prefilled
from mytests.harness.surgical import HOOKS, PROMISE, SurgicalEngine, begun, completed, finished, plan
from mytests.harness.tiers import pairs
from mytests.harness.v0.groups import child_of
from mytests.harness.v0.scenes import POLICIES, Scene, engine_with_kv
from sequence_hooks.config.choices import BlockOn
from vllm import LLM
from vllm.config import SpecialKwargs
from vllm.core.hooked_sequence import injected_into
from vllm.model_executor.models import registry


@pytest.mark.parametrize("policy", POLICIES)
def test_the_youngest_tree_gives_way_if_nobody_of_it_runs(policy: str) -> None:
    """It is evicted whole, so that children of the older one run side by side; or, with "preserve", by turns."""
    engine = engine_with_kv(replace(HOOKS, children_per_promise=3), policy, num_blocks=8)
    engine.scheduler._estimate._mean_len = 8.0
    scene, keeps = Scene(engine, r="!", s="!"), policy == "preserve"
    scene.happen(("r", 8), ("s", 8), 2)
    assert engine.queues()["running"] == ["r_child_0", "r_child_1"][: 2 - keeps]
    assert engine.queues()["waiting"] == ([] if keeps else ["s_child_0", "s_child_1", "s_child_2"])
    assert engine.scheduler.evictor.evictions == ({} if keeps else {"discard": 4})
    scene.end()


class TestAdmission:
    def test_a_child_waits_for_the_room_that_its_like_have_needed(self) -> None:
        """While others run it waits for as many blocks as children need on average; a new request queues behind it."""
        engine = engine_with_kv(replace(HOOKS, children_per_promise=2), num_blocks=8)
        engine.scheduler._estimate._mean_len = 12.0
        scene, waiting = Scene(engine, r="!"), {"s": "WAITING", "r_child_1": "WAITING"}
        statuses = scene.happen(("r", 8), 1, ("s", 1), 1)
        assert statuses == {"r": "BLOCKED", "r_child_0": "RUNNING", **waiting}
        scene.end()

    def test_the_mean_length_follows_those_that_end(self) -> None:
        """It is a slow moving average, over children only."""
        engine = engine_with_kv(HOOKS)
        engine.add("r")
        engine.run(plan(r="!z", r_child_0="B" * 31))
        assert engine.scheduler._estimate._mean_len == 2.0

    @pytest.mark.parametrize(("max_tokens", "num_wanted"), [(None, 1 + 4), (6, 1 + 2)])
    def test_no_more_is_expected_than_max_tokens(self, max_tokens: int | None, num_wanted: int) -> None:
        """A child is expected to need a block for the promise, and those for what it may sample."""
        engine = engine_with_kv(HOOKS)
        engine.scheduler._estimate._mean_len = 16.0
        group = engine.add("r", prompt="p" * 8, max_tokens=max_tokens)
        engine.step({"r": PROMISE})
        assert engine.scheduler._estimate.num_wanted(child_of(group)) == num_wanted

    @pytest.mark.rule(8)
    def test_a_child_that_never_fits_fails_alone(self) -> None:
        """It grows beyond the whole KV cache, merges as empty and is marked; its parent continues."""
        engine = SurgicalEngine(block_size=4, num_blocks=6)
        output = completed(engine, prompt="p" * 10, r="!z", r_child_0="B" * 60)
        assert (output.text, output.children[0].finish_reason) == ("z", "length")
        assert output.children[0].finished_time is not None

    @pytest.mark.parametrize("policy", POLICIES)
    def test_a_fan_out_that_can_never_fit_fails_alone(self, policy: str) -> None:
        """With its prefix the child exceeds the whole KV cache; its parent goes on with an empty result."""
        engine = engine_with_kv(replace(HOOKS, child_prefix_token_ids=(7,) * 12), policy, num_blocks=4)
        scene = Scene(engine, r="!z", s="abc")
        scene.happen(("r", 6), ("s", 3))
        scene.end()
        (child,) = finished(engine).children
        assert (child.failed, finished(engine).text, finished(engine, "s").text) == (True, "z", "abc")


@pytest.mark.parametrize("policy", POLICIES)
class TestNobodyHangs:
    def test_who_is_blocked_holds_what_the_head_of_the_queue_needs(self, policy: str) -> None:
        """The deadlock of other engines: the blocked wait for a caller, who waits for the request at the head."""
        engine = engine_with_kv(policy=policy, num_blocks=6)
        scene = Scene(engine, r=".a", s=".b", t=".c", u="abc")
        scene.happen(("r", 8), ("s", 8), ("t", 8), 1)
        assert engine.num_free_blocks() == 0
        scene.happen(("u", 20), 8)
        assert finished(engine, "u").text == "abc"
        scene.happen("r", "s", "t")
        scene.end()
        assert [finished(engine, name).text for name in "rst"] == ["a", "b", "c"]

    def test_the_blocked_share_what_the_head_of_the_queue_needs(self, policy: str) -> None:
        """Evicting either of the sharers alone frees nothing; the third may be in swap space."""
        engine = engine_with_kv(policy=policy, num_blocks=8, num_cpu_blocks=16, max_model_len=32)
        scene = Scene(engine, r="!.y", r_child_0=".z", s=".x", t="abc")
        scene.happen(("r", 12), 3, ("s", 8), 2)
        assert len(engine.scheduler.blocked) == 3
        scene.happen(("t", 26), 8)
        assert finished(engine, "t").text == "abc"
        scene.happen("r_child_0", "r", "s")
        scene.end()
        assert [finished(engine, name).text for name in "rs"] == ["zy", "x"]

    @pytest.mark.parametrize("num_cpu_blocks", [1, 2, 4])
    def test_swap_space_is_full(self, policy: str, num_cpu_blocks: int) -> None:
        """Preempted sequences are then recomputed; upstream would crash the engine."""
        engine = engine_with_kv(HOOKS, policy, num_blocks=5, max_model_len=20, num_cpu_blocks=num_cpu_blocks)
        scene = Scene(engine, r="aaa!z", s="bbb!z", t="ccc!z", **{f"{name}_child_0": "B" * 3 for name in "rst"})
        scene.happen(("r", 6), ("s", 6), ("t", 6))
        scene.end()
        assert [finished(engine, name).text for name in "rst"] == ["aaaBBBz", "bbbBBBz", "cccBBBz"]


@pytest.mark.parametrize(("num_blocks", "is_given_up"), [(10, False), (8, True)])
def test_kept_kv_is_given_up_before_a_running_group_is_preempted(num_blocks: int, is_given_up: bool) -> None:
    """The tokens of one child are then prefilled, and those of its sibling are still copied."""
    engine = SurgicalEngine(SYNC_INJECT, num_blocks=num_blocks, max_model_len=64)
    output = completed(engine, r="!!.z", r_child_0="ABCDEFGH", r_child_1="V" * 13)
    assert (engine.scheduler.evictor.evictions["discard"] > 0) is is_given_up
    assert output.text == "ABCDEFGH\n" + "V" * 13 + "z"


def test_a_join_that_waits_for_room_is_undone_when_nobody_can_go_on() -> None:
    """Its kept KV is freed, and its parent is recomputed."""
    engine = SurgicalEngine(SYNC_INJECT)
    with begun(engine, plan(r="!.z", r_child_0="ABCDE"), lambda: bool(engine.scheduler._kept)):
        engine.scheduler.driver.join_ready()
        (group,) = engine.scheduler.forked
        assert engine.scheduler._evict_one()
        assert (bool(engine.scheduler._kept), injected_into(group.first_seq)) == (False, None)
    assert finished(engine).text == "ABCDEz"


def test_a_swapped_parent_prefills_what_is_merged() -> None:
    """Nothing is injected: its KV is on the CPU, and its children's is not."""
    engine = SurgicalEngine(replace(SYNC_INJECT, blocked_kv_policy="swap"), num_cpu_blocks=16, max_model_len=64)
    with begun(engine, plan(r="!aaaa.z", r_child_0="ABCDEFGH"), lambda: engine.statuses()["r"] == "BLOCKED"):
        assert engine.scheduler.evictor.evict_one([engine.request_of("r")], 99)
    assert (finished(engine).text, prefilled(engine)) == ("aaaaABCDEFGHz", [1 + 8])


def test_a_parent_to_which_kv_is_still_copied_is_not_swapped_out() -> None:
    """Until then its children's KV stays, which could take the room that it would wait for."""
    engine = SurgicalEngine(SYNC_INJECT, num_cpu_blocks=16, max_model_len=64)
    with begun(engine, plan(r="!.z", r_child_0="ABCDE"), lambda: bool(engine.scheduler._kept)):
        engine.scheduler.driver.join_ready()
        engine.scheduler._admit()
        engine.scheduler._preempt_now(engine.request_of("r"))
        assert engine.statuses() == {"r": "WAITING"}
    assert finished(engine).text == "ABCDEz"


@pytest.mark.parametrize("rule", ["sequential", "overlap"])
def test_injected_kv_is_given_up_as_a_whole(rule: Any) -> None:
    """After only a part of it, tokens would be computed at other positions."""
    engine = SurgicalEngine(replace(SYNC_INJECT, sync_resume="manual", position_rule=rule))
    with begun(engine, plan(r="!.a.z", r_child_0="ABCDEFGH"), engine.is_waiting_for_callers) as script:
        engine.resume("r", "")
        engine.step(script)
        engine.run_until(engine.is_waiting_for_callers, script)
        group = engine.request_of("r")
        assert injected_into(group.first_seq) is not None
        engine.scheduler.evictor.evict(group, 2)
        assert (group.first_seq.get_num_computed_tokens(), injected_into(group.first_seq)) == (0, None)
        engine.resume("r", "")
    assert finished(engine).text == "ABCDEFGHaz"


@pytest.mark.model
@pytest.mark.parametrize(("block_on", "spare_blocks"), pairs([("promise",), ("sync",)], [6, 100]))
def test_asynchronous_outputs_change_no_token(block_on: BlockOn, spare_blocks: int) -> None:
    """They do not change what is injected either, if nothing is given up."""
    setup = replace(TIGHT, block_on=block_on, spare_blocks=spare_blocks)
    _, expected = run_and_check(random_requests(setup))
    run, layouts = run_and_check(random_requests(replace(setup, async_output=True)))
    assert run.engine.model_config.use_async_output_proc
    if spare_blocks == 100:
        told = [[layout.node.tokens, layout.num_injected] for layout in everybody(layouts)]
        assert told == [[layout.node.tokens, layout.num_injected] for layout in everybody(expected)]


INJECT = SpecialKwargs(promise_token_id=3, child_merge_strategy="kv_inject", merge_separator="")
TINY = {"vocab_size": 64, "n_layer": 1, "n_head": 2}
MODELS: dict[str, tuple[PretrainedConfig, str]] = {
    "GPT2LMHeadModel": (GPT2Config(**TINY, n_embd=64), "layers without rotary embeddings"),
    "BloomForCausalLM": (BloomConfig(**TINY, hidden_size=64), "ALiBi"),
}


@pytest.mark.model
@pytest.mark.parametrize("architecture", MODELS)
def test_models_whose_keys_are_not_rotated(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rotated keys, positions in the KV cannot be changed, so the model is refused, with the way out."""
    # A process for each model takes ten seconds.
    monkeypatch.setattr(registry, "_run_in_subprocess", lambda look: look())
    config, named = MODELS[architecture]
    config.architectures = [architecture]
    config.save_pretrained(tmp_path)
    fields = {"load_format": "dummy", "enforce_eager": True, "max_model_len": 128, "skip_tokenizer_init": True}
    with pytest.raises(ValueError, match=f"{named}.*use 'concatenate'"):
        LLM(str(tmp_path), special_kwargs=INJECT, dtype="float32", **fields)
