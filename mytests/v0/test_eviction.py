# SPDX-License-Identifier: Apache-2.0
"""Too little KV: who gives up what, who waits, and that no sequence waits forever, on a KV cache that checks reads."""

import dataclasses
from typing import Any

import pytest

from mytests.fuzz.handlers import REPLACING
from mytests.harness.surgical import EOS, HOOKS, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, finished, plan
from mytests.harness.v0.groups import child_of
from mytests.harness.v0.variants import engine_with_kv
from vllm.core.hooked_sequence import branch_of


def blocked_under_pressure(policy: str, **sizes: Any) -> SurgicalEngine:
    """``r`` is BLOCKED with two of eight blocks, and two others outgrow the rest."""
    engine = engine_with_kv(policy=policy, num_blocks=8, max_model_len=32, **sizes)
    engine.add("r", prompt="p" * 8)
    engine.step({"r": SYNC})
    engine.add("s", prompt="s" * 8)
    engine.add("t", prompt="t" * 8)
    engine.run_until(engine.scheduler.is_waiting_for_callers, plan(s="a" * 6, t="b" * 6))
    assert (finished(engine, "s").text, finished(engine, "t").text) == ("a" * 6, "b" * 6)
    return engine


def resume_to_the_end(engine: SurgicalEngine) -> int:
    """The number of tokens that ``r`` prefills when it goes on with four more."""
    engine.processor.resume("r", "tool")
    engine.run(plan(r=".z"))
    engine.assert_empty()
    assert finished(engine).text == "toolz"
    return finished(engine).joins[0].num_prefill


class TestPolicies:
    def test_discarded_kv_is_computed_again(self) -> None:
        """In the end that is all of it, discarded one block each time that one was missing."""
        engine = blocked_under_pressure("discard")
        assert engine.scheduler.evictor.evictions == {"discard": 2}
        assert engine.scheduler.evictor.num_recomputed == 8
        assert resume_to_the_end(engine) == 8 + 1 + 4

    def test_what_a_join_replaces_may_have_no_kv(self) -> None:
        """All that it leaves of the context is computed then."""
        engine = engine_with_kv(dataclasses.replace(HOOKS, block_on="sync", handlers=tuple(REPLACING.items())))
        parent, script = engine.add(), plan(r="!aaayz", r_child_0="BBBBBB")
        engine.run_until(lambda: engine.statuses()["r"] == "BLOCKED", script)
        engine.scheduler.evictor.evict_all(parent)
        engine.run(script)
        (join,) = finished(engine).joins
        assert join.num_replaced and join.num_prefill == join.num_context
        engine.assert_empty()

    def test_swapped_kv_comes_back(self) -> None:
        """The resume prefills only new tokens."""
        engine = blocked_under_pressure("swap", num_cpu_blocks=8)
        assert engine.scheduler.evictor.evictions == {"swap": 1}
        assert engine.scheduler.block_manager.get_num_free_cpu_blocks() == 6
        assert resume_to_the_end(engine) == 1 + 4

    @pytest.mark.parametrize("sizes", [{"num_cpu_blocks": 0}, {"num_cpu_blocks": 1}])
    def test_without_room_to_swap_kv_is_discarded(self, sizes: dict[str, int]) -> None:
        """There is no swap space, or too little."""
        engine = blocked_under_pressure("swap", **sizes)
        assert engine.scheduler.evictor.evictions == {"discard": 2}
        assert resume_to_the_end(engine) == 8 + 1 + 4

    def test_swap_without_swap_space_is_warned_of(self, caplog: pytest.LogCaptureFixture) -> None:
        """The warning is logged when the engine starts."""
        engine_with_kv(policy="swap")
        assert "blocked_kv_policy is 'swap', and there is no swap space" in caplog.text

    def test_preserve_has_the_running_preempted(self) -> None:
        """A BLOCKED sequence keeps its KV."""
        engine = blocked_under_pressure("preserve")
        assert engine.scheduler.evictor.evictions == {}
        assert engine.scheduler.num_cumulative_preemption > 0
        assert resume_to_the_end(engine) == 1 + 4

    @pytest.mark.parametrize(("seconds_per_block", "means"), [(1.0, "swap"), (2.5, "discard")])
    def test_auto_takes_the_means_that_wastes_less(
        self, seconds_per_block: float, means: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The choice is between recomputing eight tokens and copying two blocks out and back."""
        monkeypatch.setattr("vllm.core.eviction.StepCosts.fit", lambda _: (1.0, seconds_per_block))
        engine = blocked_under_pressure("auto", num_cpu_blocks=8)
        assert set(engine.scheduler.evictor.evictions) == {means}
        resume_to_the_end(engine)

    def test_the_least_waste_for_a_block_goes_first(self) -> None:
        """A last block with one token goes before one with four that blocked later, and no more than is missing."""
        engine = engine_with_kv(num_blocks=6)
        groups = [engine.add("r", prompt="p" * 5), engine.add("s", prompt="q" * 8)]
        engine.step({"r": SYNC, "s": SYNC})
        engine.add("t", prompt="p" * 8)
        engine.step({"t": ord("x")})
        engine.step({"t": EOS})
        assert [len(engine.block_table(group)) for group in groups] == [1, 2]

    @pytest.mark.parametrize("target", ["r", "r_child_0"])
    def test_an_abort_of_a_swapped_sequence(self, target: str) -> None:
        """Its blocks in swap space are freed, too."""
        engine = SurgicalEngine(SYNC_HOOKS, num_blocks=9, num_cpu_blocks=32, max_model_len=32)
        for name in ("q", "r"):
            engine.add(name, prompt="p" * 8)
        script = plan(q="x" * 20, r="!" + "y" * 20 + ".z", r_child_0="C" * 20)
        engine.run_until(lambda: engine.statuses().get(target) == "SWAPPED", script)
        engine.abort(target)
        engine.run(script)
        engine.assert_empty()


class TestSharedPrefix:
    def test_it_stays_when_a_parent_gives_up_the_rest(self) -> None:
        """Its child shares two of its three blocks; only the third is computed again."""
        engine = engine_with_kv(SYNC_HOOKS, num_blocks=9)
        parent = engine.add("r", prompt="p" * 8)
        script = plan(r="!" + "a" * 3 + ".z", r_child_0="B" * 12, s="c" * 8)
        for _ in range(5):
            engine.step(script)
        assert engine.statuses() == {"r_child_0": "RUNNING", "r": "BLOCKED"}
        engine.add("s", prompt="s" * 9)
        engine.run_until(lambda: engine.scheduler.evictor.evictions["discard"] > 0, script)
        assert len(engine.block_table(parent)) == 2
        engine.run(script)
        (join,) = finished(engine).joins
        assert (join.num_context - join.num_prefill, finished(engine).text) == (8, "aaa" + "B" * 12 + "z")
        engine.assert_empty()

    def test_a_parent_whose_blocks_are_all_shared_gives_up_none(self) -> None:
        """Evicting them would free nothing: its child is preempted, and keeps them too."""
        engine = engine_with_kv(HOOKS, num_blocks=4, max_model_len=64)
        parent = engine.add("r", prompt="p" * 8)
        engine.step({"r": PROMISE})
        engine.step({})
        engine.add("s", prompt="s")
        engine.scheduler._estimate.num_wanted = lambda group: 0  # type: ignore[method-assign]
        engine.run_until(lambda: engine.scheduler.num_cumulative_preemption > 0, {})
        assert engine.scheduler.evictor.evictions == {}
        assert len(engine.block_table(parent)) >= 2

    def test_a_preempted_child_computes_its_own_tokens_again(self) -> None:
        """It does not recompute its parent's context, and it is queued before new requests."""
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
        """Discarded blocks are found in the cache until they are reused, which happens to the last ones first."""
        engine = engine_with_kv(policy="discard", num_blocks=num_blocks, prefix_caching=True)
        group = engine.add("r", prompt="p" * 8)
        engine.step({"r": SYNC})
        assert engine.scheduler.evictor.evict_one([group], 99)
        engine.add("s", prompt="s" * 24)
        engine.run_until(lambda: "s" in engine.outputs and engine.outputs["s"].finished, plan(s="a"))
        before = engine.worker.num_computed
        engine.processor.resume("r", "tool")
        engine.run(plan(r=".z"))
        # Plus the sync token, the four new tokens, and the token sampled after them.
        assert engine.worker.num_computed - before == num_lost + 1 + 4 + 1
        assert finished(engine).text == "toolz"
        engine.assert_empty()


def test_a_step_that_copies_out_copies_nothing_in() -> None:
    """The worker copies in first, which would overwrite what is still to be saved."""
    engine = engine_with_kv(policy="swap", num_blocks=6, num_cpu_blocks=16, max_model_len=24)
    for name in "rs":
        engine.add(name, prompt=name * 8)
    engine.step(lambda group: SYNC)
    engine.add("t", prompt="t" * 8)
    script = plan(r=".a", s=".b", t="c" * 12)
    engine.run_until(lambda: engine.scheduler.evictor.evictions["swap"] > 0, script)
    engine.processor.resume("r", "")
    engine.processor.resume("s", "")
    engine.run(script)
    assert [finished(engine, name).text for name in "rst"] == ["a", "b", "c" * 12]
    engine.assert_empty()


def test_what_is_recomputed_has_no_branch_of_its_own() -> None:
    """Even under pressure a request without hooks is upstream's."""
    engine = engine_with_kv(num_blocks=4, max_model_len=16)
    group, other = engine.add("r", prompt="r" * 6), engine.add("s", prompt="s" * 6)
    engine.run(plan(r="a" * 8, s="b" * 8))
    assert (branch_of(group), branch_of(other)) == (None, None)
    assert engine.scheduler.num_cumulative_preemption > 0
    engine.assert_empty()
