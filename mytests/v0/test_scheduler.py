# SPDX-License-Identifier: Apache-2.0
"""`HookScheduler`: who waits for whom, who gives up KV, what the worker is told."""

import dataclasses

import pytest

from mytests.harness.surgical import PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, finished, plan
from mytests.harness.v0.groups import child_of
from sequence_hooks.tree.integrity import IntegrityError
from sequence_hooks.tree.port import SchedulerPort
from vllm.core.hook_queues import IllegalTransition
from vllm.core.hook_scheduler import HookScheduler
from vllm.core.scheduler import Scheduler
from vllm.sequence import SequenceStatus

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")


class TestBlocks:
    def test_a_shared_block_is_copied_by_the_first_to_write(self) -> None:
        """The worker is told to copy the shared block to the writer's new one."""
        engine = SurgicalEngine(SYNC_HOOKS, block_size=4)
        parent = engine.add(prompt="abcdef")
        engine.step({"r": PROMISE})
        shared = engine.block_table(parent)[-1]
        engine.step({})
        ours, its = engine.block_table(parent)[1], engine.block_table(child_of(parent))[1]
        assert {ours, its} != {shared}
        assert engine.copies == [(shared, its if ours == shared else ours)]

    def test_blocked_parents_keep_their_blocks_while_anything_else_can_run(self) -> None:
        """They keep them even if another request waits for blocks."""
        engine = SurgicalEngine(MANUAL, block_size=4, num_blocks=10)
        parent = engine.add("r", prompt="p" * 7)
        engine.add("s", prompt="p" * 7)
        script = plan(r=".z", s="a" * 6, t="b")
        engine.step(script)
        engine.add("t", prompt="p" * 30)
        for _ in range(4):
            engine.step(script)
        assert engine.statuses() == {"t": "WAITING", "s": "RUNNING", "r": "BLOCKED"}
        assert len(engine.block_table(parent)) == 2

    def test_a_blocked_parent_gives_way_before_a_running_group_is_preempted(self) -> None:
        """Evicting it costs a recompute of a sequence that is idle."""
        engine = SurgicalEngine(MANUAL, block_size=4, num_blocks=8)
        parent = engine.add("r", prompt="p" * 8)
        engine.step(plan(r=".z"))
        engine.add("s", prompt="p" * 8)
        engine.add("t", prompt="p" * 8)
        script = plan(s="a" * 6, t="b" * 6)
        while not engine.scheduler.is_waiting_for_callers():
            engine.step(script)
        assert engine.scheduler.num_cumulative_preemption == 0
        assert parent.first_seq.seq_id not in engine.scheduler.block_manager.block_tables
        assert (finished(engine, "s").text, finished(engine, "t").text) == ("a" * 6, "b" * 6)

    def test_no_more_is_given_up_than_is_needed_and_the_latest_first(self) -> None:
        """A prompt of three blocks evicts one parent, and not the other."""
        engine = SurgicalEngine(MANUAL, block_size=4, num_blocks=6)
        first, second = engine.add("r", prompt="p" * 8), engine.add("s", prompt="p" * 8)
        for _ in range(2):
            engine.step(plan(r=".z", s=".z"))
        engine.add("t", prompt="p" * 10)
        engine.step({})
        manager = engine.scheduler.block_manager
        assert [group.first_seq.seq_id in manager.block_tables for group in (first, second)] == [True, False]
        assert engine.statuses()["t"] == "RUNNING"

    def test_a_step_that_fails_a_prompt_is_no_reason_to_give_anything_up(self) -> None:
        """The step made progress, and the next one may go on."""
        engine = SurgicalEngine(MANUAL, block_size=4, num_blocks=6)
        parent = engine.add("r", prompt="p" * 8)
        engine.step(plan(r=".z"))
        engine.add("s", prompt="p" * 100)
        engine.step({})
        assert finished(engine, "s").finish_reason == "length"
        assert len(engine.block_table(parent)) == 2

    def test_a_parent_that_gave_up_its_blocks_is_recomputed_in_its_turn(self) -> None:
        """It goes on from WAITING with its merged tokens, and each token is computed once."""
        engine = SurgicalEngine(MANUAL, block_size=4, num_blocks=6)
        engine.add("r", prompt="p" * 8)
        engine.step(plan(r=".z"))
        engine.add("s", prompt="p" * 20)
        engine.step(plan(s="ab"))
        engine.processor.resume("r", "tool")
        engine.step(plan(s="ab"))
        assert engine.statuses()["r"] == "WAITING"
        engine.run(plan(r=".z", s="ab"))
        assert finished(engine).text == "toolz"
        assert finished(engine).joins[0].num_prefill == 8 + 1 + 4
        engine.assert_empty()


class TestQueues:
    @pytest.mark.parametrize("length", [1, 2, 3])
    def test_a_resume_prefills_in_one_step(self, length: int) -> None:
        """It prefills the merged tokens and its own last one, however few they are."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add()
        script = plan(r="!.z", r_child_0="B" * length)
        steps = [engine.step(script) for _ in range(length + 4)]
        prefills = [
            entry.num_tokens for step in steps[1:] for entry in step if entry.request_id == "r" and entry.is_prefill
        ]
        assert prefills == [length + 1]

    def test_a_resume_with_nothing_new_is_a_decode(self) -> None:
        """Only the last sampled token is left to compute, as if its parent had never been set aside."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add()
        engine.step({"r": SYNC})
        (scheduled,) = engine.step(plan(r=".z"))
        assert (scheduled.request_id, scheduled.num_tokens, scheduled.is_prefill) == ("r", 1, False)

    def test_one_parent_that_must_wait_does_not_hold_up_another(self) -> None:
        """The same step blocks both; only the second can go on."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add("r")
        engine.add("s")
        script = plan(r="!.z", s=".z", r_child_0="B" * 9)
        for _ in range(2):
            engine.step(script)
        assert {(entry.request_id, entry.is_prefill) for entry in engine.step(script)} == {
            ("r_child_0", False),
            ("s", False),
        }
        engine.run(script)
        engine.assert_empty()

    def test_it_waits_for_callers_only_if_nobody_else_can_go_on(self) -> None:
        """A request that is waiting, running or just spawned can go on."""
        engine = SurgicalEngine(MANUAL)
        assert not engine.scheduler.is_waiting_for_callers()
        engine.add("r")
        engine.step(plan(r="."))
        engine.step({})
        assert engine.scheduler.is_waiting_for_callers()
        engine.add("s")
        assert not engine.scheduler.is_waiting_for_callers()
        engine.step(plan(s="ab"))
        assert not engine.scheduler.is_waiting_for_callers()
        while not engine.scheduler.is_waiting_for_callers():
            engine.step(plan(s="ab"))
        assert engine.statuses() == {"r": "BLOCKED"}

    def test_blocked_counts_as_unfinished(self) -> None:
        """The scheduler's counts include BLOCKED parents and spawned children."""
        engine = SurgicalEngine()
        engine.add()
        engine.step({"r": PROMISE})
        assert engine.scheduler.get_num_unfinished_seq_groups() == 2
        assert engine.scheduler.has_unfinished_seqs()
        engine.run(plan(r="!", r_child_0=""))
        engine.assert_empty()

    def test_the_worker_learns_who_has_finished(self) -> None:
        """It drops its state of a sequence, such as a generator, when that is aborted or joined at its end."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add("r")
        engine.add("s")
        script = plan(r="!a", s="!.z", r_child_0="BCD", s_child_0="B" * 9)
        engine.step(script)
        engine.step(script)
        engine.scheduler.abort_seq_group("s")
        assert {"s", "s_child_0"} <= set(engine.scheduler.get_and_reset_finished_requests_ids())
        engine.run(script)
        engine.step({})
        engine.step({})
        assert engine.finished_ids[-2:] == ["r_child_0", "r"]

    def test_ended_parents_are_joined_from_the_bottom_up_in_one_step(self) -> None:
        """Each has ended and only waits for its child; what the last one gets goes up to the request."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, max_child_depth=3))
        engine.add("r")
        script = plan(r="!a", r_child_0="!b", r_child_0_child_0="!c", r_child_0_child_0_child_0="defg")
        engine.run_until(lambda: set(engine.statuses().values()) == {"BLOCKED"}, script)
        assert sorted(engine.statuses()) == ["r", "r_child_0", "r_child_0_child_0"]
        engine.step(script)
        assert engine.statuses() == {}
        assert finished(engine).text == "abcdefg"
        engine.assert_empty()

    def test_an_abort_reaches_a_child_that_was_preempted(self) -> None:
        """It is waiting to be recomputed, without blocks of its own."""
        engine = SurgicalEngine(SYNC_HOOKS, block_size=4, num_blocks=7)
        engine.add(prompt="p" * 10)
        script = plan(r="!" + "a" * 30, r_child_0="B" * 30)
        while engine.statuses().get("r_child_0") != "WAITING" or engine.scheduler.num_cumulative_preemption == 0:
            engine.step(script)
        engine.scheduler.abort_seq_group("r")
        assert engine.statuses() == {}
        engine.assert_empty()

    def test_a_preempted_request_without_a_tree_may_keep_blocks(self) -> None:
        """It waits where sequences of trees do, and goes on."""
        engine = SurgicalEngine(SYNC_HOOKS, block_size=4)
        group = engine.add(prompt="p" * 10)
        script = plan(r="abcdefg")
        engine.step(script)
        engine.scheduler.running.remove(group)
        engine.scheduler.forked.appendleft(None, group)
        group.first_seq.status = SequenceStatus.WAITING
        engine.run(script)
        assert finished(engine).text == "abcdefg"
        engine.assert_empty()

    @pytest.mark.parametrize("status", ["BLOCKED", "FINISHED_ABORTED"])
    def test_an_illegal_transition_names_both_states(self, status: str) -> None:
        """This holds for each status that cannot become BLOCKED."""
        engine = SurgicalEngine(SYNC_HOOKS)
        group = engine.add()
        branch = engine.plant(group)
        group.first_seq.status = SequenceStatus[status]
        with pytest.raises(IllegalTransition, match=f"r cannot go from {status} to BLOCKED"):
            engine.scheduler.block_sequence(branch)


class TestPort:
    def test_no_method_of_upstreams_has_a_name_of_the_drivers_port(self) -> None:
        """Upstream's own code would call ours."""
        port = {name for name in vars(SchedulerPort) if not name.startswith("_")}
        assert len(port) == 9
        assert port <= vars(HookScheduler).keys()
        assert not port & set(dir(Scheduler))


class TestIntegrity:
    def test_a_status_that_is_not_its_queues_is_told(self) -> None:
        """It names the sequence, its status and the queue."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add().first_seq.status = SequenceStatus.RUNNING
        with pytest.raises(IntegrityError, match="r is RUNNING, and is in the queue 'waiting'"):
            engine.scheduler.check_integrity()

    def test_queues_and_trees_have_the_same_sequences_blocked(self) -> None:
        """A BLOCKED sequence whose tree doesn't know would never be joined."""
        engine = SurgicalEngine(SYNC_HOOKS)
        group = engine.add()
        engine.step({"r": PROMISE})
        engine.scheduler._move(group, SequenceStatus.BLOCKED)
        with pytest.raises(IntegrityError, match=r"\['r'\] are BLOCKED in the queues or in the trees, but not in both"):
            engine.scheduler.check_integrity()

    def test_a_blocked_sequence_is_one_in_its_tree_too(self) -> None:
        """So nothing is wrong while one waits."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add()
        engine.step({"r": PROMISE})
        engine.step({"r": SYNC})
        assert engine.statuses()["r"] == "BLOCKED"
        engine.scheduler.check_integrity()

    def test_a_block_that_nobody_holds_is_told(self) -> None:
        """It leaked."""
        engine = SurgicalEngine(SYNC_HOOKS, num_blocks=8)
        group = engine.add(prompt="p" * 8)
        engine.step({})
        tables = engine.scheduler.block_manager.block_tables
        del tables[group.first_seq.seq_id]
        with pytest.raises(IntegrityError, match=r"GPU: 6 blocks are free and 0 are held, of 8"):
            engine.scheduler.check_integrity()
