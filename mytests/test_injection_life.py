# SPDX-License-Identifier: Apache-2.0
"""`kv_inject` without a model, where it doesn't run smoothly: memory is short, a sequence ends, blocks are cached."""

import dataclasses
from typing import Any

import pytest

from mytests.surgical import EOS, SurgicalEngine, finished, ids, plan
from mytests.test_injection import INJECT, SYNC_INJECT, engine_with_kv, prefilled, recorded
from vllm.utils import Device


class TestPressure:
    def test_a_parent_without_kv_is_recomputed(self) -> None:
        """And what was kept of its children is given back."""
        engine = engine_with_kv(SYNC_INJECT)
        group = engine.add(prompt="prompt")
        script = plan(r="!.z", r_child_0="ABCDE")
        engine.run_until(lambda: bool(engine.scheduler._kept), script)
        engine.scheduler.pressure.give_up_all(group)
        engine.run(script)
        assert (finished(engine).text, prefilled(engine)) == ("ABCDEz", [6 + 2 + 5])
        assert recorded(engine).num_injected == 0
        engine.assert_empty()

    def test_kept_kv_is_given_up_before_a_running_group_is_preempted(self) -> None:
        """Then its tokens are prefilled, and those of its sibling copied still."""
        engine = engine_with_kv(num_blocks=10, max_model_len=64)
        engine.add(prompt="prompt")
        script = plan(r="!!.z", r_child_0="ABCDEFGH", r_child_1="V" * 13)
        engine.run(script)
        assert engine.scheduler.pressure.evictions["discard"] == 0
        engine = engine_with_kv(num_blocks=8, max_model_len=64)
        engine.add(prompt="prompt")
        engine.run(script)
        assert engine.scheduler.pressure.evictions["discard"] > 0
        assert finished(engine).text == "ABCDEFGH\n" + "V" * 13 + "z"
        engine.assert_empty()

    def test_a_join_that_waits_for_room_is_undone_when_nobody_can_go_on(self) -> None:
        """Its parent is recomputed then."""
        engine = engine_with_kv()
        group = engine.add(prompt="prompt")
        script = plan(r="!.z", r_child_0="ABCDE")
        engine.run_until(lambda: bool(engine.scheduler._kept), script)
        engine.scheduler._settle()
        assert list(engine.scheduler.forked) == [group]
        assert engine.scheduler._give_up_kv_of_one()
        assert (bool(engine.scheduler._kept), engine.scheduler.branch_for(group).injected) == (False, None)
        engine.run(script)
        assert finished(engine).text == "ABCDEz"
        engine.assert_empty()

    def test_a_swapped_parent_prefills_what_is_merged(self) -> None:
        """Its KV and its children's are in different places."""
        engine = engine_with_kv(
            dataclasses.replace(SYNC_INJECT, blocked_kv_policy="swap"), num_cpu_blocks=16, max_model_len=64
        )
        group = engine.add(prompt="prompt")
        script = plan(r="!aaaa.z", r_child_0="ABCDEFGH")
        engine.run_until(lambda: engine.statuses()["r"] == "BLOCKED", script)
        assert engine.scheduler.pressure.relieve([group], 99)
        engine.run(script)
        assert (finished(engine).text, prefilled(engine)) == ("aaaaABCDEFGHz", [1 + 8])
        engine.assert_empty()

    @pytest.mark.parametrize("rule", ["sequential", "overlap"])
    def test_injected_kv_is_given_up_as_a_whole(self, rule: Any) -> None:
        """Behind a part of it tokens would be computed at other positions."""
        hooks = dataclasses.replace(SYNC_INJECT, sync_resume="manual", position_rule=rule)
        engine = engine_with_kv(hooks)
        group = engine.add(prompt="prompt")
        script = plan(r="!.a.z", r_child_0="ABCDEFGH")
        engine.run_until(engine.scheduler.is_waiting_for_callers, script)
        engine.processor.resume("r", "")
        engine.step(script)
        engine.run_until(engine.scheduler.is_waiting_for_callers, script)
        branch = engine.scheduler.branch_for(group)
        assert branch.injected is not None
        engine.scheduler.pressure.give_up(group, 2)
        assert (group.first_seq.get_num_computed_tokens(), branch.injected) == (0, None)
        engine.processor.resume("r", "")
        engine.run(script)
        assert finished(engine).text == "ABCDEFGHaz"
        engine.assert_empty()


class TestEnds:
    def test_a_parent_that_ends_at_its_join_needs_no_kv(self) -> None:
        """Nothing is kept once it has ended."""
        engine = engine_with_kv()
        engine.add(prompt="prompt")
        engine.run(plan(r="!!aaaa", r_child_0="AB", r_child_1="C" * 9))
        assert (finished(engine).text, recorded(engine).num_injected) == ("aaaaAB\n" + "C" * 9, 0)
        engine.assert_empty()

    @pytest.mark.parametrize("aborted", ["r", "r_child_1"])
    def test_an_abort_gives_back_what_was_kept(self, aborted: str) -> None:
        """Of a request, at once; of one child, when its parent is joined."""
        engine = engine_with_kv()
        engine.add(prompt="prompt")
        script = plan(r="!!.z", r_child_0="ABC", r_child_1="D" * 20)
        engine.run_until(lambda: bool(engine.scheduler._kept), script)
        engine.scheduler.abort_seq_group(aborted)
        engine.run(script)
        engine.assert_empty()

    def test_a_merge_is_cut_to_the_models_length(self) -> None:
        """No more is copied than fits."""
        engine = engine_with_kv(max_model_len=16)
        engine.add(prompt="prompt")
        engine.run(plan(r="!!.z", r_child_0="ABC", r_child_1="DEFGH"))
        assert (finished(engine).text, finished(engine).finish_reason) == ("ABC\nDEF", "length")
        engine.assert_empty()


class TestPrefixCaching:
    def test_an_injected_block_is_found_by_nobody(self) -> None:
        """A request with the same tokens finds what stands before the injection."""
        engine = engine_with_kv(prefix_caching=True)
        engine.add(prompt="promptprompt")
        engine.run(plan(r="!!.zzzzzz", r_child_0="ABCDEFGH", r_child_1="STUVWXYZ"))
        text = [*ids("promptprompt"), *finished(engine).token_ids]
        group = engine.add("s", prompt="".join(map(chr, text)))
        engine.step({})
        assert cached(engine, group.first_seq) == [12]
        engine.run(lambda group: EOS)
        engine.assert_empty()

    def test_nor_while_its_sequence_runs(self) -> None:
        """It is full, and its hash has a number of its own."""
        engine = engine_with_kv(prefix_caching=True)
        parent = engine.add(prompt="promptprompt")
        script = plan(r="!!." + "z" * 40, r_child_0="ABCDEFGH", r_child_1="STUVWXYZ", s="a")
        engine.run_until(lambda: parent.first_seq.get_output_len() > 26, script)
        group = engine.add("s", prompt="".join(map(chr, parent.first_seq.get_token_ids())))
        engine.step(script)
        assert cached(engine, group.first_seq) == [12]
        engine.run(script)
        engine.assert_empty()

    def test_nor_is_one_that_begins_with_the_injection(self) -> None:
        """The promise is the first token of a new block."""
        engine = engine_with_kv(dataclasses.replace(INJECT, child_prefix_token_ids=(7,)), prefix_caching=True)
        engine.add(prompt="promptpr")
        engine.run(plan(r="!zzzzzz", r_child_0="ABCDEFGH"))
        text = [*ids("promptpr"), *finished(engine).token_ids]
        group = engine.add("s", prompt="".join(map(chr, text)))
        engine.step({})
        assert cached(engine, group.first_seq) == [8]
        engine.run(lambda group: EOS)
        engine.assert_empty()

    def test_it_leaves_the_cache_with_its_sequence(self) -> None:
        """What is left there are hashes that tokens have."""
        engine = engine_with_kv(prefix_caching=True)
        engine.add(prompt="promptprompt")
        engine.run(plan(r="!!.zzzz!y", r_child_0="ABCDEFGH", r_child_1="STUVWXYZ", r_child_2="IJKLMNOPQ"))
        allocator = engine.scheduler.block_manager.block_allocator._allocators[Device.GPU]
        known = [recorded(engine).blocks[("gpu", block)] for block in allocator._cached_blocks.values()]
        assert known
        assert not any(entry.is_injected for block in known for entry in block.values())
        # Nor what was computed behind injected KV: the prompt and the children of the first two promises only.
        assert all(entry.position < 12 + 2 + 8 for block in known for entry in block.values())
        engine.assert_empty()


def cached(engine: SurgicalEngine, seq: Any) -> list[int]:
    """Tokens that the prefix cache had for a prefill."""
    return [engine.scheduler.block_manager._computed_blocks_tracker._seq_id_to_num_tokens_computed[seq.seq_id]]
