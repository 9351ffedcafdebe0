# SPDX-License-Identifier: Apache-2.0
"""Aborts, ends, tight memory and full batches: whatever happens, nothing hangs and nothing leaks."""

import dataclasses

import pytest

from mytests.harness.installed import SHARES_FILLED_BLOCKS
from mytests.harness.outcomes import Case
from mytests.harness.surgical import CHILD, HOOKS, PROMISE, SYNC_HOOKS, SurgicalEngine, completed, plan


class TestAborts:
    def test_abort_of_one_request_leaves_the_others(self) -> None:
        """Ids are compared whole: aborting "r" spares "r2"."""
        engine = SurgicalEngine()
        engine.add("r")
        engine.add("r2")
        engine.step({"r": PROMISE, "r2": PROMISE})
        engine.abort(["r"])
        engine.run(plan(r2="!z", r2_child_0="B"))
        assert engine.outputs["r2"].outputs[0].text == "Bz"


class TestEnds:
    @pytest.mark.rule(2)
    @pytest.mark.parametrize(("num_prefix", "is_spawned"), [(12, True), (13, False), (20, False)])
    def test_a_promise_without_room_for_a_child_is_an_ordinary_token(self, num_prefix: int, is_spawned: bool) -> None:
        """A child's context must leave room for a token of its own: here 24, less a prompt of 9 and 2 sampled."""
        hooks = dataclasses.replace(HOOKS, child_prefix_token_ids=(4,) * num_prefix)
        completion = completed(SurgicalEngine(hooks, max_model_len=24), prompt="p" * 9, r="a!z", r_child_0="B")
        assert (bool(completion.children), completion.text.endswith("z")) == (is_spawned, True)


class TestFullBatches:
    @pytest.mark.rule(1)
    def test_children_wait_for_a_slot_in_order(self) -> None:
        """At most max_num_seqs run; further children wait, and are admitted in order."""
        engine = SurgicalEngine(SYNC_HOOKS, max_num_seqs=2)
        engine.add("r")
        engine.add("s")
        script = plan(r="!!.z", s="!.y", r_child_0="AA", r_child_1="BB", s_child_0="CC")
        while engine.has_unfinished():
            assert len(engine.step(script)) <= 2
        assert [engine.outputs[name].outputs[0].text for name in "rs"] == ["AA\nBBz", "CCy"]
        engine.assert_empty()

    def test_a_tree_that_has_begun_goes_before_new_requests(self) -> None:
        """Its child gets the slot that its BLOCKED parent leaves, however long others have waited."""
        engine = SurgicalEngine(max_num_seqs=1)
        engine.add("r")
        engine.add("s")
        engine.run_until(lambda: engine.statuses().get("r_child_0") == "RUNNING", plan(r="!z", r_child_0="BC", s="y"))
        assert engine.statuses() == {"r": "BLOCKED", "s": "WAITING", "r_child_0": "RUNNING"}
        engine.run(plan(r="!z", r_child_0="BC", s="y"))
        assert [engine.outputs[name].outputs[0].text for name in "rs"] == ["BCz", "y"]

    def test_a_small_token_budget_chunks_the_resume(self) -> None:
        """Merged tokens beyond the budget are prefilled over several steps."""
        sizes = {"max_num_batched_tokens": 16, "max_num_seqs": 4}
        Case(HOOKS, "!z", "B" * 40, prompt="p" * 30, sizes=sizes, text="B" * 40 + "z").check()


class TestMemory:
    @pytest.mark.parametrize("prompt_length", range(6, 15))
    @pytest.mark.parametrize("prefix_caching", [False, True])
    def test_a_spawn_at_any_place_in_a_block(self, prompt_length: int, prefix_caching: bool) -> None:
        """What both hold is shared, on V0 with caching also a block that the promise fills; the rest is apart."""
        engine = SurgicalEngine(SYNC_HOOKS, block_size=4, prefix_caching=prefix_caching)
        engine.add(prompt="p" * prompt_length)
        script = plan(r="!abcdef.z", r_child_0="ABCDEF")
        engine.step(script)
        full_blocks = (prompt_length + (prefix_caching and SHARES_FILLED_BLOCKS)) // 4
        for _ in range(3):
            engine.step(script)
        ours, its = engine.blocks_of("r"), engine.blocks_of("r_child_0")
        assert ours[:full_blocks] == its[:full_blocks]
        assert not set(ours[full_blocks:]) & set(its[full_blocks:])
        engine.run(script)
        assert engine.outputs["r"].outputs[0].text == "abcdefABCDEFz"

    @pytest.mark.rule(8)
    def test_children_that_need_their_parents_blocks_get_them(self) -> None:
        """Parents give up blocks that their children need, so that no request waits forever."""
        engine = SurgicalEngine(block_size=4, num_blocks=12)
        names = ["r", "s", "t"]
        for name in names:
            engine.add(name, prompt="p" * 12)
        scripts = dict.fromkeys(names, "!z") | {f"{name}_child_0": "B" * 20 for name in names}
        engine.run(plan(**scripts), max_steps=600)
        assert {engine.outputs[name].outputs[0].text for name in names} == {"B" * 20 + "z"}
        assert max(r.num_prefill for n in names for r in engine.outputs[n].outputs[0].joins) > 22

    @pytest.mark.parametrize("prompt_length", range(18, 24))
    def test_a_child_that_fits_only_without_its_parents_blocks(self, prompt_length: int) -> None:
        """Its context, with the prefix, fills the whole KV cache."""
        hooks = dataclasses.replace(HOOKS, child_prefix_token_ids=(CHILD,) * (25 - prompt_length))
        sizes = {"num_blocks": 7, "max_model_len": 28}
        Case(hooks, "!z", "B", prompt="p" * prompt_length, sizes=sizes, text="Bz").check()
