# SPDX-License-Identifier: Apache-2.0
"""`kv_inject` on V0: what is refused, memory that is short, and asynchronous outputs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import BloomConfig, GPT2Config, PretrainedConfig

from mytests.fuzz.injection_runs import TIGHT, everybody, random_requests, run_and_check
from mytests.harness.injecting import SYNC_INJECT, prefilled
from mytests.harness.surgical import SurgicalEngine, finished, plan
from mytests.harness.tiers import pairs
from sequence_hooks.config.choices import BlockOn
from vllm import LLM
from vllm.config import SpecialKwargs
from vllm.core.hooked_sequence import injected_into
from vllm.model_executor.models import registry


def test_kept_kv_is_given_up_before_a_running_group_is_preempted() -> None:
    """The tokens of one child are then prefilled, and those of its sibling are still copied."""
    engine = SurgicalEngine(SYNC_INJECT, num_blocks=10, max_model_len=64)
    engine.add(prompt="prompt")
    script = plan(r="!!.z", r_child_0="ABCDEFGH", r_child_1="V" * 13)
    engine.run(script)
    assert engine.scheduler.evictor.evictions["discard"] == 0
    engine = SurgicalEngine(SYNC_INJECT, num_blocks=8, max_model_len=64)
    engine.add(prompt="prompt")
    engine.run(script)
    assert engine.scheduler.evictor.evictions["discard"] > 0
    assert finished(engine).text == "ABCDEFGH\n" + "V" * 13 + "z"
    engine.assert_empty()


def test_a_join_that_waits_for_room_is_undone_when_nobody_can_go_on() -> None:
    """Its kept KV is freed, and its parent is recomputed."""
    engine = SurgicalEngine(SYNC_INJECT)
    group = engine.add(prompt="prompt")
    script = plan(r="!.z", r_child_0="ABCDE")
    engine.run_until(lambda: bool(engine.scheduler._kept), script)
    engine.scheduler.driver.join_ready()
    assert list(engine.scheduler.forked) == [group]
    assert engine.scheduler._evict_one()
    assert (bool(engine.scheduler._kept), injected_into(group.first_seq)) == (False, None)
    engine.run(script)
    assert finished(engine).text == "ABCDEz"
    engine.assert_empty()


def test_a_swapped_parent_prefills_what_is_merged() -> None:
    """Nothing is injected: its KV is on the CPU, and its children's is not."""
    engine = SurgicalEngine(replace(SYNC_INJECT, blocked_kv_policy="swap"), num_cpu_blocks=16, max_model_len=64)
    group = engine.add(prompt="prompt")
    script = plan(r="!aaaa.z", r_child_0="ABCDEFGH")
    engine.run_until(lambda: engine.statuses()["r"] == "BLOCKED", script)
    assert engine.scheduler.evictor.evict_one([group], 99)
    engine.run(script)
    assert (finished(engine).text, prefilled(engine)) == ("aaaaABCDEFGHz", [1 + 8])
    engine.assert_empty()


def test_a_parent_to_which_kv_is_still_copied_is_not_swapped_out() -> None:
    """Until then its children's KV stays, which could take the room that it would wait for."""
    engine = SurgicalEngine(SYNC_INJECT, num_cpu_blocks=16, max_model_len=64)
    group = engine.add(prompt="prompt")
    script = plan(r="!.z", r_child_0="ABCDE")
    engine.run_until(lambda: bool(engine.scheduler._kept), script)
    engine.scheduler.driver.join_ready()
    engine.scheduler._admit()
    engine.scheduler._preempt_now(group)
    assert engine.statuses() == {"r": "WAITING"}
    engine.run(script)
    assert finished(engine).text == "ABCDEz"
    engine.assert_empty()


@pytest.mark.parametrize("rule", ["sequential", "overlap"])
def test_injected_kv_is_given_up_as_a_whole(rule: Any) -> None:
    """After only a part of it, tokens would be computed at other positions."""
    hooks = replace(SYNC_INJECT, sync_resume="manual", position_rule=rule)
    engine = SurgicalEngine(hooks)
    group = engine.add(prompt="prompt")
    script = plan(r="!.a.z", r_child_0="ABCDEFGH")
    engine.run_until(engine.scheduler.is_waiting_for_callers, script)
    engine.processor.resume("r", "")
    engine.step(script)
    engine.run_until(engine.scheduler.is_waiting_for_callers, script)
    assert injected_into(group.first_seq) is not None
    engine.scheduler.evictor.evict(group, 2)
    assert (group.first_seq.get_num_computed_tokens(), injected_into(group.first_seq)) == (0, None)
    engine.processor.resume("r", "")
    engine.run(script)
    assert finished(engine).text == "ABCDEFGHaz"
    engine.assert_empty()


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
