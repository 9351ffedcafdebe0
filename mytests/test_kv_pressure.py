# SPDX-License-Identifier: Apache-2.0
"""Too little KV: who gives up what, who waits, and that nobody hangs. All on a KV cache that checks what is read."""

import dataclasses
import logging
from typing import Any, get_args

import pytest

from mytests.pretended_kv import PretendedKV
from mytests.surgical import EOS, HOOKS, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, child_of, finished, plan
from vllm.config import SpecialKwargs
from vllm.hooks.branch import branch_of
from vllm.hooks.config import BlockedKVPolicy

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")
POLICIES = get_args(BlockedKVPolicy)


def engine_with_kv(hooks: SpecialKwargs = MANUAL, policy: Any = "auto", **sizes: Any) -> SurgicalEngine:
    hooks = dataclasses.replace(hooks, blocked_kv_policy=policy)
    fields: dict[str, Any] = {"block_size": 4, "model": PretendedKV(4)} | sizes
    return SurgicalEngine(hooks, **fields)


def blocked_under_pressure(policy: str, **sizes: Any) -> SurgicalEngine:
    """``r`` is BLOCKED with two blocks, and two others outgrow what is left of eight."""
    engine = engine_with_kv(policy=policy, num_blocks=8, max_model_len=32, **sizes)
    engine.add("r", prompt="p" * 8)
    engine.step({"r": SYNC})
    engine.add("s", prompt="s" * 8)
    engine.add("t", prompt="t" * 8)
    engine.run_until(engine.scheduler.is_waiting_for_callers, plan(s="a" * 6, t="b" * 6))
    assert (finished(engine, "s").text, finished(engine, "t").text) == ("a" * 6, "b" * 6)
    return engine


def resume_to_the_end(engine: SurgicalEngine) -> int:
    """Tokens that ``r`` prefills when it goes on with four more."""
    engine.processor.resume("r", "tool")
    engine.run(plan(r=".z"))
    engine.assert_empty()
    assert finished(engine).text == "toolz"
    return finished(engine).joins[0].num_prefill


class TestPolicies:
    def test_discarded_kv_is_computed_again(self) -> None:
        """All of it in the end, a block each time that one was missing."""
        engine = blocked_under_pressure("discard")
        assert engine.scheduler.pressure.evictions == {"discard": 2}
        assert engine.scheduler.pressure.num_recomputed == 8
        assert resume_to_the_end(engine) == 8 + 1 + 4

    def test_swapped_kv_comes_back(self) -> None:
        """The resume prefills what is new."""
        engine = blocked_under_pressure("swap", num_cpu_blocks=8)
        assert engine.scheduler.pressure.evictions == {"swap": 1}
        assert engine.scheduler.block_manager.get_num_free_cpu_blocks() == 6
        assert resume_to_the_end(engine) == 1 + 4

    @pytest.mark.parametrize("sizes", [{"num_cpu_blocks": 0}, {"num_cpu_blocks": 1}])
    def test_without_room_to_swap_kv_is_discarded(self, sizes: dict[str, int]) -> None:
        """There is no swap space, or too little."""
        engine = blocked_under_pressure("swap", **sizes)
        assert engine.scheduler.pressure.evictions == {"discard": 2}
        assert resume_to_the_end(engine) == 8 + 1 + 4

    def test_swap_without_swap_space_is_warned_of(self, caplog: pytest.LogCaptureFixture) -> None:
        """When the engine starts."""
        logging.getLogger("vllm").propagate = True
        engine_with_kv(policy="swap")
        assert "blocked_kv_policy is 'swap', and there is no swap space" in caplog.text

    def test_preserve_has_the_running_preempted(self) -> None:
        """A BLOCKED sequence keeps its KV."""
        engine = blocked_under_pressure("preserve")
        assert engine.scheduler.pressure.evictions == {}
        assert engine.scheduler.num_cumulative_preemption > 0
        assert resume_to_the_end(engine) == 1 + 4

    @pytest.mark.parametrize(("seconds_per_block", "means"), [(1.0, "swap"), (2.5, "discard")])
    def test_auto_takes_the_means_that_wastes_less(
        self, seconds_per_block: float, means: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Eight tokens to compute again, or two blocks to copy out and back."""
        monkeypatch.setattr("vllm.core.kv_pressure.StepCosts.fit", lambda _: (1.0, seconds_per_block))
        engine = blocked_under_pressure("auto", num_cpu_blocks=8)
        assert set(engine.scheduler.pressure.evictions) == {means}
        resume_to_the_end(engine)

    def test_the_least_waste_for_a_block_goes_first(self) -> None:
        """A last block with one token, and not one with four that blocked later; no more than is missing."""
        engine = engine_with_kv(num_blocks=6)
        groups = [engine.add("r", prompt="p" * 5), engine.add("s", prompt="q" * 8)]
        engine.step({"r": SYNC, "s": SYNC})
        engine.add("t", prompt="p" * 8)
        engine.step({"t": ord("x")})
        engine.step({"t": EOS})
        assert [len(engine.block_table(group)) for group in groups] == [1, 2]


class TestSharedPrefix:
    def test_it_stays_when_a_parent_gives_up_the_rest(self) -> None:
        """Of three blocks its child shares two; what the third held is computed again."""
        engine = engine_with_kv(SYNC_HOOKS, num_blocks=9)
        parent = engine.add("r", prompt="p" * 8)
        script = plan(r="!" + "a" * 3 + ".z", r_child_0="B" * 12, s="c" * 8)
        for _ in range(5):
            engine.step(script)
        assert engine.statuses() == {"r_child_0": "RUNNING", "r": "BLOCKED"}
        engine.add("s", prompt="s" * 9)
        engine.run_until(lambda: engine.scheduler.pressure.evictions["discard"] > 0, script)
        assert len(engine.block_table(parent)) == 2
        engine.run(script)
        (join,) = finished(engine).joins
        assert (join.num_context - join.num_prefill, finished(engine).text) == (8, "aaa" + "B" * 12 + "z")
        engine.assert_empty()

    def test_a_parent_whose_blocks_are_all_shared_gives_up_none(self) -> None:
        """Nothing would be gained: its child is preempted, and keeps them too."""
        engine = engine_with_kv(HOOKS, num_blocks=4, max_model_len=64)
        parent = engine.add("r", prompt="p" * 8)
        engine.step({"r": PROMISE})
        engine.step({})
        engine.add("s", prompt="s")
        engine.scheduler._admission.num_wanted = lambda group: 0  # type: ignore[method-assign]
        engine.run_until(lambda: engine.scheduler.num_cumulative_preemption > 0, {})
        assert engine.scheduler.pressure.evictions == {}
        assert len(engine.block_table(parent)) >= 2

    def test_a_preempted_child_computes_its_own_tokens_again(self) -> None:
        """And not its parent's context; it waits before new requests do."""
        engine = engine_with_kv(SYNC_HOOKS, num_blocks=6, max_model_len=40)
        engine.add("r", prompt="p" * 8)
        script = plan(r="!" + "a" * 9, r_child_0="B" * 9)
        engine.run_until(lambda: engine.scheduler.num_cumulative_preemption > 0, script)
        child = child_of(engine.scheduler.running[0])
        assert list(engine.scheduler.forked) == [child]
        assert child.first_seq.get_num_computed_tokens() == 8
        engine.run(script)
        assert finished(engine).text == "a" * 9 + "B" * 9
        engine.assert_empty()


class TestPrefixCaching:
    @pytest.mark.parametrize(("num_blocks", "num_lost"), [(14, 0), (8, 4), (7, 8)])
    def test_a_resume_recomputes_what_the_cache_has_lost(self, num_blocks: int, num_lost: int) -> None:
        """Discarded blocks are found again until somebody takes them, the last ones first."""
        engine = engine_with_kv(policy="discard", num_blocks=num_blocks, prefix_caching=True)
        group = engine.add("r", prompt="p" * 8)
        engine.step({"r": SYNC})
        assert engine.scheduler.pressure.relieve([group], 99)
        engine.add("s", prompt="s" * 24)
        engine.run_until(lambda: "s" in engine.outputs and engine.outputs["s"].finished, plan(s="a"))
        assert isinstance(engine.model, PretendedKV)
        before = engine.model.num_computed
        engine.processor.resume("r", "tool")
        engine.run(plan(r=".z"))
        # And the sync token, what is new, and the token sampled behind it.
        assert engine.model.num_computed - before == num_lost + 1 + 4 + 1
        assert finished(engine).text == "toolz"
        engine.assert_empty()


class TestTrees:
    def hooked(self, policy: str) -> SurgicalEngine:
        """Two trees of which only the older one runs: three children each, and room for one at a time."""
        engine = engine_with_kv(dataclasses.replace(HOOKS, children_per_promise=3), policy, num_blocks=8)
        engine.scheduler._admission._mean_len = 8.0
        engine.add("r", prompt="r" * 8)
        engine.add("s", prompt="s" * 8)
        engine.step({"r": PROMISE, "s": PROMISE})
        engine.step({})
        return engine

    @pytest.mark.parametrize("policy", ["discard", "swap", "auto"])
    def test_the_youngest_gives_way_if_nobody_of_it_runs(self, policy: str) -> None:
        """All of it, so that the children of the older one run side by side."""
        engine = self.hooked(policy)
        running = [group.request_id for group in engine.scheduler.running]
        assert running == ["r_child_0", "r_child_1"]
        assert [group.request_id for group in engine.scheduler.waiting] == [
            "s_child_0",
            "s_child_1",
            "s_child_2",
        ]
        engine.run(lambda group: EOS)
        engine.assert_empty()

    def test_preserve_keeps_it(self) -> None:
        """The children take turns."""
        engine = self.hooked("preserve")
        assert [group.request_id for group in engine.scheduler.running] == ["r_child_0"]
        assert not engine.scheduler.waiting
        engine.run(lambda group: EOS)
        engine.assert_empty()


class TestAdmission:
    def test_a_child_waits_for_the_room_that_its_like_have_needed(self) -> None:
        """While others run; a new request waits behind it."""
        engine = engine_with_kv(dataclasses.replace(HOOKS, children_per_promise=2), num_blocks=8)
        engine.scheduler._admission._mean_len = 12.0
        engine.add("r", prompt="p" * 8)
        engine.step({"r": PROMISE})
        engine.add("s", prompt="s")
        engine.step({})
        assert engine.statuses() == {
            "s": "WAITING",
            "r_child_0": "RUNNING",
            "r": "BLOCKED",
            "r_child_1": "WAITING",
        }
        engine.run(lambda group: EOS)
        engine.assert_empty()

    def test_the_mean_length_follows_those_that_end(self) -> None:
        """Slowly, and is of children alone."""
        engine = engine_with_kv(HOOKS)
        engine.add("r")
        engine.run(plan(r="!z", r_child_0="B" * 31))
        assert engine.scheduler._admission._mean_len == 2.0

    @pytest.mark.parametrize(("max_tokens", "num_wanted"), [(None, 1 + 4), (6, 1 + 2)])
    def test_no_more_is_expected_than_max_tokens(self, max_tokens: int | None, num_wanted: int) -> None:
        """A block for the promise, and those for what it may sample."""
        engine = engine_with_kv(HOOKS)
        engine.scheduler._admission._mean_len = 16.0
        group = engine.add("r", prompt="p" * 8, max_tokens=max_tokens)
        engine.step({"r": PROMISE})
        assert engine.scheduler._admission.num_wanted(child_of(group)) == num_wanted

    @pytest.mark.parametrize("policy", POLICIES)
    def test_a_fan_out_that_can_never_fit_fails_alone(self, policy: str) -> None:
        """Its prefix is longer than all KV; its parent goes on with an empty result."""
        hooks = dataclasses.replace(HOOKS, child_prefix_token_ids=(7,) * 12)
        engine = engine_with_kv(hooks, policy, num_blocks=4)
        engine.add("r", prompt="p" * 6)
        engine.add("s", prompt="s" * 3)
        engine.run(plan(r="!z", s="abc"))
        (child,) = finished(engine).children
        assert (child.failed, finished(engine).text, finished(engine, "s").text) == (True, "z", "abc")
        engine.assert_empty()


@pytest.mark.parametrize("policy", POLICIES)
class TestNobodyHangs:
    def test_who_is_blocked_holds_what_the_head_of_the_queue_needs(self, policy: str) -> None:
        """The hang that others have: the blocked wait for a caller, and he for the request at the head."""
        engine = engine_with_kv(policy=policy, num_blocks=6)
        for name in "rst":
            engine.add(name, prompt=name * 8)
        engine.step(lambda group: SYNC)
        assert engine.num_free_blocks() == 0
        engine.add("u", prompt="u" * 20)
        engine.run_until(lambda: "u" in engine.outputs and engine.outputs["u"].finished, plan(u="abc"))
        for name in "rst":
            engine.processor.resume(name, "")
        engine.run(plan(r=".a", s=".b", t=".c"))
        assert [finished(engine, name).text for name in "rstu"] == ["a", "b", "c", "abc"]
        engine.assert_empty()

    @pytest.mark.parametrize("prefix_caching", [False, True])
    def test_children_hold_what_their_siblings_need(self, policy: str, prefix_caching: bool) -> None:
        """More of them than fit, each with more than half of the KV."""
        hooks = dataclasses.replace(HOOKS, children_per_promise=8)
        engine = engine_with_kv(hooks, policy, num_blocks=6, max_model_len=24, prefix_caching=prefix_caching)
        engine.add("r", prompt="p" * 6)
        engine.add("s", prompt="s" * 6)
        children = {f"{name}_child_{k}": "B" * 10 for name in "rs" for k in range(8)}
        engine.run(plan(r="!z", s="!z", **children), max_steps=800)
        assert all(not child.failed for name in "rs" for child in finished(engine, name).children)
        engine.assert_empty()

    def test_the_blocked_share_what_the_head_of_the_queue_needs(self, policy: str) -> None:
        """Neither gains anything by giving up its own; the third may be in swap space."""
        engine = engine_with_kv(policy=policy, num_blocks=8, num_cpu_blocks=16, max_model_len=32)
        engine.add("r", prompt="r" * 12)
        script = plan(r="!.y", r_child_0=".z", s=".x", t="abc")
        engine.run_until(lambda: len(engine.scheduler.blocked) == 2, script)
        engine.add("s", prompt="s" * 8)
        engine.run_until(lambda: len(engine.scheduler.blocked) == 3, script)
        engine.add("t", prompt="t" * 26)
        engine.run_until(lambda: "t" in engine.outputs and engine.outputs["t"].finished, script)
        for name in ("r_child_0", "r", "s"):
            engine.processor.resume(name, "")
        engine.run(script)
        assert [finished(engine, name).text for name in "rst"] == ["zy", "x", "abc"]
        engine.assert_empty()

    @pytest.mark.parametrize("num_cpu_blocks", [1, 2, 4])
    def test_swap_space_is_full(self, policy: str, num_cpu_blocks: int) -> None:
        """The preempted are recomputed; upstream would end the engine."""
        engine = engine_with_kv(HOOKS, policy, num_blocks=5, max_model_len=20, num_cpu_blocks=num_cpu_blocks)
        for name in "rst":
            engine.add(name, prompt=name * 6)
        children = {f"{name}_child_0": "B" * 3 for name in "rst"}
        engine.run(plan(r="aaa!z", s="bbb!z", t="ccc!z", **children))
        assert [finished(engine, name).text for name in "rst"] == ["aaaBBBz", "bbbBBBz", "cccBBBz"]
        engine.assert_empty()


def test_a_step_that_copies_out_copies_nothing_in() -> None:
    """The worker copies in first: it would write over what is still to be saved."""
    engine = engine_with_kv(policy="swap", num_blocks=6, num_cpu_blocks=16, max_model_len=24)
    for name in "rs":
        engine.add(name, prompt=name * 8)
    engine.step(lambda group: SYNC)
    engine.add("t", prompt="t" * 8)
    script = plan(r=".a", s=".b", t="c" * 12)
    engine.run_until(lambda: engine.scheduler.pressure.evictions["swap"] > 0, script)
    engine.processor.resume("r", "")
    engine.processor.resume("s", "")
    engine.run(script)
    assert [finished(engine, name).text for name in "rst"] == ["a", "b", "c" * 12]
    engine.assert_empty()


def test_what_is_recomputed_has_no_branch_of_its_own() -> None:
    """A plain request under pressure is upstream's."""
    engine = engine_with_kv(num_blocks=4, max_model_len=16)
    group, other = engine.add("r", prompt="r" * 6), engine.add("s", prompt="s" * 6)
    engine.run(plan(r="a" * 8, s="b" * 8))
    assert (branch_of(group), branch_of(other)) == (None, None)
    assert engine.scheduler.num_cumulative_preemption > 0
    engine.assert_empty()
