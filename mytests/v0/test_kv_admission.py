# SPDX-License-Identifier: Apache-2.0
"""Who is admitted when KV is short, who waits, and that no sequence waits forever, on a KV cache that checks reads."""

import dataclasses

import pytest

from mytests.harness.surgical import EOS, HOOKS, PROMISE, SYNC, SurgicalEngine, completed, finished, plan
from mytests.harness.v0.groups import child_of
from mytests.harness.v0.scenes import POLICIES, engine_with_kv


class TestTrees:
    def hooked(self, policy: str) -> SurgicalEngine:
        """Two trees with three children each, of which only the older runs; there is room for one child at a time."""
        engine = engine_with_kv(dataclasses.replace(HOOKS, children_per_promise=3), policy, num_blocks=8)
        engine.scheduler._estimate._mean_len = 8.0
        engine.add("r", prompt="r" * 8)
        engine.add("s", prompt="s" * 8)
        engine.step({"r": PROMISE, "s": PROMISE})
        engine.step({})
        return engine

    @pytest.mark.parametrize("policy", POLICIES)
    def test_the_youngest_gives_way_if_nobody_of_it_runs(self, policy: str) -> None:
        """It is evicted whole, so that children of the older one run side by side; or, with "preserve", by turns."""
        engine = self.hooked(policy)
        keeps = policy == "preserve"
        assert engine.queues()["running"] == ["r_child_0", "r_child_1"][: 2 - keeps]
        assert engine.queues()["waiting"] == ([] if keeps else ["s_child_0", "s_child_1", "s_child_2"])
        assert engine.scheduler.evictor.evictions == ({} if keeps else {"discard": 4})
        engine.run(lambda group: EOS)
        engine.assert_empty()


class TestAdmission:
    def test_a_child_waits_for_the_room_that_its_like_have_needed(self) -> None:
        """While others run it waits for as many blocks as children need on average; a new request queues behind it."""
        engine = engine_with_kv(dataclasses.replace(HOOKS, children_per_promise=2), num_blocks=8)
        engine.scheduler._estimate._mean_len = 12.0
        engine.add("r", prompt="p" * 8)
        engine.step({"r": PROMISE})
        engine.add("s", prompt="s")
        engine.step({})
        waiting = {"s": "WAITING", "r_child_1": "WAITING"}
        assert engine.statuses() == {"r": "BLOCKED", "r_child_0": "RUNNING", **waiting}
        engine.run(lambda group: EOS)
        engine.assert_empty()

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
        """The deadlock of other engines: the blocked wait for a caller, who waits for the request at the head."""
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

    def test_the_blocked_share_what_the_head_of_the_queue_needs(self, policy: str) -> None:
        """Evicting either of the sharers alone frees nothing; the third may be in swap space."""
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
        """Preempted sequences are then recomputed; upstream would crash the engine."""
        engine = engine_with_kv(HOOKS, policy, num_blocks=5, max_model_len=20, num_cpu_blocks=num_cpu_blocks)
        for name in "rst":
            engine.add(name, prompt=name * 6)
        children = {f"{name}_child_0": "B" * 3 for name in "rst"}
        engine.run(plan(r="aaa!z", s="bbb!z", t="ccc!z", **children))
        assert [finished(engine, name).text for name in "rst"] == ["aaaBBBz", "bbbBBBz", "cccBBBz"]
        engine.assert_empty()
