# SPDX-License-Identifier: Apache-2.0
"""`HookScheduler`: who waits for whom, who gives up KV, what the worker is told, and what it refuses."""

from types import SimpleNamespace
from typing import Any

import pytest

from mytests.harness.surgical import PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, finished, plan
from mytests.harness.v0.groups import child_of
from mytests.harness.v0.scenes import MANUAL, Scene
from sequence_hooks.tree.integrity import IntegrityError
from sequence_hooks.tree.port import SchedulerPort
from vllm.core.hook_queues import IllegalTransition
from vllm.core.hook_scheduler import HookScheduler
from vllm.core.hooked_sequence import branch_of
from vllm.core.scheduler import Scheduler
from vllm.sequence import SequenceGroup, SequenceStatus


class TestBlocks:
    def test_blocked_parents_keep_their_blocks_while_anything_else_can_run(self) -> None:
        """They keep them even if another request waits for blocks."""
        scene = Scene(SurgicalEngine(MANUAL, num_blocks=10), r=".z", s="a" * 6, t="b")
        statuses = scene.happen(("r", 7), ("s", 7), 1, ("t", 30), 4)
        assert statuses == {"t": "WAITING", "s": "RUNNING", "r": "BLOCKED"}
        assert len(scene.engine.blocks_of("r")) == 2

    def test_no_more_is_given_up_than_is_needed_and_the_latest_first(self) -> None:
        """A prompt of three blocks evicts one parent, and not the other."""
        scene = Scene(SurgicalEngine(MANUAL, num_blocks=6), r=".z", s=".z")
        assert scene.happen(("r", 8), ("s", 8), 2, ("t", 10), 1)["t"] == "RUNNING"
        assert scene.engine.blocked_with_kv() == ["r"]

    def test_a_step_that_fails_a_prompt_is_no_reason_to_give_anything_up(self) -> None:
        """The step made progress, and the next one may go on."""
        scene = Scene(SurgicalEngine(MANUAL, num_blocks=6), r=".z")
        scene.happen(("r", 8), 1, ("s", 100), 1)
        assert finished(scene.engine, "s").finish_reason == "length"
        assert len(scene.engine.blocks_of("r")) == 2


class TestQueues:
    def test_a_resume_with_nothing_new_is_a_decode(self) -> None:
        """As if its parent had never been set aside; its worker gets upstream's metadata as they are."""
        metadata: Any = SimpleNamespace(token_chunk_size=1, computed_block_nums=())
        engine = SurgicalEngine(SYNC_HOOKS)
        group = engine.add()
        engine.step({"r": SYNC})
        (scheduled,) = engine.step(plan(r=".z"))
        assert (scheduled.num_tokens, scheduled.is_prefill) == (1, False)
        assert engine.scheduler._injection.metadata(metadata, group) == (metadata, False)
        engine.run(plan(r=".z"))

    def test_one_parent_that_must_wait_does_not_hold_up_another(self) -> None:
        """The same step blocks both; only the second can go on."""
        scene = Scene(SurgicalEngine(SYNC_HOOKS), r="!.z", s=".z", r_child_0="B" * 9)
        scene.happen(("r", 6), ("s", 6), 2)
        scheduled = {(entry.request_id, entry.is_prefill) for entry in scene.engine.step(scene.tokens)}
        assert scheduled == {("r_child_0", False), ("s", False)}
        scene.end()

    def test_it_waits_for_callers_only_if_nobody_else_can_go_on(self) -> None:
        """A request that is waiting or running can go on."""
        scene = Scene(SurgicalEngine(MANUAL), r=".", s="ab")
        found = [scene.engine.is_waiting_for_callers()]
        for event in (("r", 6), 2, ("s", 6), 1, 2):
            scene.happen(event)
            found.append(scene.engine.is_waiting_for_callers())
        assert found == [False, False, True, False, False, True]
        assert scene.engine.statuses() == {"r": "BLOCKED"}

    def test_blocked_counts_as_unfinished(self) -> None:
        """So do spawned children; upstream takes every status above SWAPPED as finished."""
        scene = Scene(SurgicalEngine(), r="!")
        scene.happen(("r", 6), 1)
        assert scene.engine.scheduler.get_num_unfinished_seq_groups() == 2
        assert not SequenceStatus.is_finished(SequenceStatus.BLOCKED)
        assert SequenceStatus.get_finished_reason(SequenceStatus.BLOCKED) is None
        scene.end()

    def test_the_worker_learns_who_has_finished(self) -> None:
        """It drops its state of a sequence, such as a generator, when that is aborted or joined at its end."""
        engine = SurgicalEngine(SYNC_HOOKS)
        scene = Scene(engine, r="!a", s="!.z", r_child_0="BCD", s_child_0="B" * 9)
        scene.happen(("r", 6), ("s", 6), 2)
        engine.abort("s")
        assert {"s", "s_child_0"} <= set(engine.scheduler.get_and_reset_finished_requests_ids())
        scene.end()
        scene.happen(2)
        assert engine.finished_ids[-2:] == ["r_child_0", "r"]

    def test_a_preempted_request_without_a_tree_may_keep_blocks(self) -> None:
        """It waits where sequences of trees do, and goes on."""
        engine, script = SurgicalEngine(SYNC_HOOKS), plan(r="abcdefg")
        group = engine.add(prompt="p" * 10)
        engine.step(script)
        engine.scheduler.running.remove(group)
        engine.scheduler.forked.appendleft(None, group)
        group.first_seq.status = SequenceStatus.WAITING
        engine.run(script)
        assert finished(engine).text == "abcdefg"
        engine.assert_empty()


class TestTransitions:
    @pytest.mark.parametrize("status", ["BLOCKED", "FINISHED_ABORTED"])
    def test_an_illegal_transition_names_both_states(self, status: str) -> None:
        """This holds for each status that cannot become BLOCKED."""
        engine = SurgicalEngine(SYNC_HOOKS)
        group = engine.add()
        branch = engine.plant(group)
        group.first_seq.status = SequenceStatus[status]
        with pytest.raises(IllegalTransition, match=f"r cannot go from {status} to BLOCKED"):
            engine.scheduler.block_sequence(branch)

    def test_a_spawn_without_a_block_table_is_refused(self) -> None:
        """Upstream's fork would return silently, and the child would have no KV."""
        engine = SurgicalEngine()
        parent = engine.add()
        engine.step({"r": PROMISE})
        branch = branch_of(parent)
        assert branch is not None
        engine.scheduler.block_manager.free(parent.first_seq)
        with pytest.raises(IllegalTransition, match="r spawns without a block table"):
            engine.scheduler.enqueue_children(branch, branch.children)


def test_no_method_of_upstreams_has_a_name_of_the_drivers_port() -> None:
    """Upstream's own code would call ours."""
    port = {name for name in vars(SchedulerPort) if not name.startswith("_")}
    assert len(port) == 9
    assert port <= vars(HookScheduler).keys()
    assert not port & set(dir(Scheduler))


def test_no_event_looks_at_the_groups_that_it_does_not_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that wait for a slot or children are never compared with others, so their number costs nothing."""
    compared: list[str] = []

    def note(self: SequenceGroup, other: object) -> Any:
        compared.append(self.request_id)
        return NotImplemented

    engine, names = SurgicalEngine(max_num_seqs=2, num_blocks=256), [f"r{index}" for index in range(8)]
    for name in names:
        engine.add(name)
    monkeypatch.setattr(SequenceGroup, "__eq__", note)
    engine.run(plan(**dict.fromkeys(names, "a!b"), **{f"{name}_child_0": "AB" for name in names}))
    # Upstream searches its deque of running groups, which holds at most as many as there are rows.
    assert len(compared) <= 8 * 2
    engine.assert_empty()


class TestIntegrity:
    def test_a_status_that_is_not_its_queues_is_told(self) -> None:
        """It names the sequence, its status and the queue."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add().first_seq.status = SequenceStatus.RUNNING
        with pytest.raises(IntegrityError, match="r is RUNNING, and is in the queue 'waiting'"):
            engine.scheduler.check_integrity()

    def test_queues_and_trees_have_the_same_sequences_blocked(self) -> None:
        """A BLOCKED sequence whose tree doesn't know would never be joined; one of which it does is right."""
        engine = SurgicalEngine(SYNC_HOOKS)
        group = engine.add()
        engine.step({"r": PROMISE})
        engine.step({"r": SYNC})
        assert engine.statuses()["r"] == "BLOCKED"
        engine.scheduler.check_integrity()
        engine.scheduler._move(child_of(group), SequenceStatus.BLOCKED)
        with pytest.raises(IntegrityError, match=r"\['r_child_0'\] are BLOCKED in the queues or in the trees, but not"):
            engine.scheduler.check_integrity()

    def test_a_block_that_nobody_holds_is_told(self) -> None:
        """It leaked."""
        engine = SurgicalEngine(SYNC_HOOKS, num_blocks=8)
        group = engine.add(prompt="p" * 8)
        engine.step({})
        del engine.scheduler.block_manager.block_tables[group.first_seq.seq_id]
        with pytest.raises(IntegrityError, match=r"GPU: 6 blocks are free and 0 are held, of 8"):
            engine.scheduler.check_integrity()
