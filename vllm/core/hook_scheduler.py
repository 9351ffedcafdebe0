# SPDX-License-Identifier: Apache-2.0
"""The scheduler of an engine with sequence hooks: it owns what upstream's queues don't know.

A child comes in with its parent's block table forked. A BLOCKED parent keeps its blocks and is not
scheduled; once its children have finished it is joined and scheduled again:

    spawn              WAITING (spawned) ──► RUNNING
    promise, sync      RUNNING ──► BLOCKED
    its own end        FINISHED_* ──► BLOCKED, with children still unjoined
    children finished  BLOCKED ──► RUNNING      KV kept: prefills the uncomputed tokens alone
                               ──► WAITING      KV given up: recomputed
                               ──► FINISHED_*   it had ended, or has no room left
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from vllm.core.scheduler import Scheduler, SchedulerOutputs, SchedulerSwappedInOutputs, SchedulingBudget
from vllm.core.shared_blocks import SharedBlocks, last_copy_into_each
from vllm.hooks.branch import Branch, branch_of
from vllm.hooks.results import Join
from vllm.sequence import Sequence, SequenceGroup, SequenceStatus

_LEGAL = {
    SequenceStatus.WAITING: {SequenceStatus.RUNNING, SequenceStatus.FINISHED_ABORTED},
    SequenceStatus.RUNNING: {SequenceStatus.BLOCKED},
    SequenceStatus.FINISHED_STOPPED: {SequenceStatus.BLOCKED},
    SequenceStatus.FINISHED_LENGTH_CAPPED: {SequenceStatus.BLOCKED},
    SequenceStatus.FINISHED_IGNORED: {SequenceStatus.BLOCKED},
    SequenceStatus.BLOCKED: set(SequenceStatus) - {SequenceStatus.BLOCKED, SequenceStatus.SWAPPED},
}


class IllegalTransition(RuntimeError):
    """A sequence was to go from one status to another that cannot follow it."""


class HookScheduler(Scheduler):
    """Upstream's scheduler, and the life of BLOCKED parents and spawned children.

    `_move` alone changes the status and the queue of a sequence for a hook. Children are noticed as
    ended at the next `schedule`, whatever ended them, so a join never changes a running step.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._blocks = SharedBlocks(self.block_manager)
        self.blocked: deque[SequenceGroup] = deque()
        self.spawned: deque[SequenceGroup] = deque()
        """Children with forked block tables, until there is a free slot among the running."""
        self._unsettled: dict[Branch, bool] = {}
        """An ordered set: parents to look at in the next `schedule`."""

        self._finished_at_join: list[SequenceGroup] = []
        self._join: Callable[[Branch], Join]

    def attach(self, join: Callable[[Branch], Join]) -> None:
        """Set what splices the results of a branch's children into it, just before it resumes."""
        self._join = join

    def spawn(self, child: Branch) -> None:
        """Take in a child of a running parent; it runs as soon as there is a slot.

        Raises:
            IllegalTransition: the parent has no block table to share.
        """
        assert child.parent is not None
        if not self._has_blocks(child.parent.seq_group):
            raise IllegalTransition(f"{child.parent.seq_group.request_id} spawns without a block table")
        self._blocks.fork(child.parent.seq, child.seq)
        self.spawned.append(child.seq_group)

    def block(self, branch: Branch) -> None:
        """Set a running parent aside until all its children have finished."""
        self._move(branch.seq_group, SequenceStatus.BLOCKED)
        self._look_at(branch)

    def resume(self, branch: Branch) -> None:
        """Let a parent go on that was blocked until a caller resumes it, once its children have finished."""
        branch.awaits_resume = False
        self._look_at(branch)

    def end(self, branch: Branch) -> None:
        """Note that a sequence has finished. With unjoined children it is BLOCKED until they have too."""
        branch.note_end()
        if branch.unjoined:
            branch.end_status = branch.seq.status
            self.block(branch)
        elif branch.parent is not None:
            self._look_at(branch.parent)

    def schedule(self) -> tuple[Any, SchedulerOutputs, bool]:
        """Upstream's `schedule`, after joining the parents and admitting the children that can go on."""
        self._settle()
        while self.spawned and self._has_free_slot():
            self._move(self.spawned[0], SequenceStatus.RUNNING)
        metadata, outputs, allow_async_output_proc = super().schedule()
        outputs.ignored_seq_groups = [group for group in outputs.ignored_seq_groups if self._end_ignored(group)]
        outputs.ignored_seq_groups += self._finished_at_join
        self._finished_at_join = []
        return metadata, outputs, allow_async_output_proc

    def abort_seq_group(
        self, request_id: str | Iterable[str], seq_id_to_seq_group: dict[str, Any] | None = None
    ) -> None:
        """Abort requests, or single branches, and all that descends from them, whatever their status."""
        request_ids = {request_id} if isinstance(request_id, str) else set(request_id)
        samples = seq_id_to_seq_group if seq_id_to_seq_group is not None else {}
        queues = chain(self.waiting, self.running, self.swapped, self.blocked, self.spawned)
        branches = [branch for branch in map(branch_of, queues) if branch is not None]
        doomed = [branch for branch in branches if branch.is_below(request_ids, samples)]
        for branch in doomed:
            group = branch.seq_group
            if group in self.blocked or group in self.spawned:
                self._move(group, SequenceStatus.FINISHED_ABORTED)
                self._release(group)
                samples.pop(group.request_id, None)
        super().abort_seq_group(request_ids | {branch.seq_group.request_id for branch in doomed}, samples)
        for branch in doomed:
            branch.note_end()
            self._unsettled.pop(branch, None)
            if branch.parent is not None and not branch.parent.seq.is_finished():
                self._look_at(branch.parent)

    def has_unfinished_seqs(self) -> bool:
        return super().has_unfinished_seqs() or bool(self.blocked or self.spawned)

    def get_num_unfinished_seq_groups(self) -> int:
        return super().get_num_unfinished_seq_groups() + len(self.blocked) + len(self.spawned)

    def is_waiting_for_callers(self) -> bool:
        """Whether nothing can go on until a caller resumes a sequence."""
        can_go_on = self.waiting or self.running or self.swapped or self.spawned or self._unsettled
        return bool(self.blocked) and not can_go_on

    def free_seq(self, seq: Sequence) -> None:
        """Give back the blocks of a sequence."""
        self._blocks.free(seq)

    def _schedule(self) -> SchedulerOutputs:
        outputs = super()._schedule()
        # What can't be scheduled may wait for the blocks of a BLOCKED parent, which waits for it.
        while self._is_stuck(outputs) and self._give_up_kv_of_one_blocked():
            outputs = super()._schedule()
        self._blocks.release_sources()
        outputs.blocks_to_copy = last_copy_into_each(outputs.blocks_to_copy)
        return outputs

    def _schedule_swapped(
        self, budget: SchedulingBudget, curr_loras: set[int] | None, enable_chunking: bool = True
    ) -> SchedulerSwappedInOutputs:
        # Upstream leaves chunks out here, and a prefill that is longer than the budget never comes back.
        self._blocks.keep_sources()
        return super()._schedule_swapped(budget, curr_loras, enable_chunking)

    def _can_append_slots(self, seq_group: SequenceGroup, enable_chunking: bool) -> bool:
        """Whether a running group has room; BLOCKED parents give theirs up before one is preempted."""
        self._blocks.keep_sources()
        while not self._blocks.can_append(seq_group.seqs):
            if not self._give_up_kv_of_one_blocked():
                return False
            self._blocks.keep_sources()
        return True

    def _append_slots(
        self, seq_group: SequenceGroup, blocks_to_copy: list[tuple[int, int]], enable_chunking: bool = False
    ) -> None:
        num_before = len(blocks_to_copy)
        super()._append_slots(seq_group, blocks_to_copy, enable_chunking)
        self._blocks.note_copies(blocks_to_copy[num_before:])

    def _is_stuck(self, outputs: SchedulerOutputs) -> bool:
        idle = outputs.is_empty() and not outputs.ignored_seq_groups
        return idle and bool(self.waiting or self.swapped)

    def _give_up_kv_of_one_blocked(self) -> bool:
        for group in reversed(self.blocked):
            if self._has_blocks(group):
                self.free_seq(group.first_seq)
                group.first_seq.reset_state_for_recompute()
                return True
        return False

    def _look_at(self, branch: Branch) -> None:
        """Have the next `schedule` see whether ``branch`` can go on."""
        self._unsettled[branch] = True

    def _settle(self) -> None:
        unsettled, self._unsettled = self._unsettled, {}
        for branch in unsettled:
            waits = branch.awaits_resume or branch.num_unfinished_children
            if branch.seq.status != SequenceStatus.BLOCKED or waits:
                continue
            if self._has_blocks(branch.seq_group) and not self._has_free_slot():
                self._look_at(branch)
            else:
                self._resume(branch)

    def _resume(self, branch: Branch) -> None:
        group = branch.seq_group
        # A child that ended in the same round may have asked for another look.
        self._unsettled.pop(branch, None)
        join = self._join(branch)
        if branch.end_status is not None:
            branch.joins.append(join)
            self._finish(branch, branch.end_status)
            return
        if self._has_blocks(group):
            _make_prefill(group)
            self._move(group, SequenceStatus.RUNNING)
        else:
            self._move(group, SequenceStatus.WAITING)
        branch.joins.append(replace(join, num_prefill=group.get_num_uncomputed_tokens()))

    def _finish(self, branch: Branch, status: SequenceStatus) -> None:
        branch.end_status = None
        self._move(branch.seq_group, status)
        self._release(branch.seq_group)
        # Upstream emits the output of a group that ends outside a step by this list.
        self._finished_at_join.append(branch.seq_group)
        self.end(branch)

    def _end_ignored(self, group: SequenceGroup) -> bool:
        """Note the end of a group that can never fit; False where it waits for its children first."""
        branch = branch_of(group)
        if branch is not None:
            self.end(branch)
        return group.is_finished()

    def _move(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """Change the status of a group's sequence and its queue, together."""
        seq = group.first_seq
        if status not in _LEGAL.get(seq.status, ()):
            raise IllegalTransition(f"{group.request_id} cannot go from {seq.status.name} to {status.name}")
        for queue in (self.spawned, self.blocked, self.running):
            if group in queue:
                queue.remove(group)
        seq.status = status
        if status == SequenceStatus.RUNNING:
            self.running.append(group)
        elif status == SequenceStatus.BLOCKED:
            self.blocked.append(group)
        elif status == SequenceStatus.WAITING:
            self.waiting.appendleft(group)

    def _release(self, group: SequenceGroup) -> None:
        self.free_seq(group.first_seq)
        self._finished_requests_ids.append(group.request_id)

    def _has_blocks(self, group: SequenceGroup) -> bool:
        return group.first_seq.seq_id in self.block_manager.block_tables

    def _has_free_slot(self) -> bool:
        return len(self.running) < self.scheduler_config.max_num_seqs


def _make_prefill(group: SequenceGroup) -> None:
    """Let a sequence that has decoded prefill what was merged into it, behind what is computed."""
    seq = group.first_seq
    if seq.data.get_num_uncomputed_tokens() > 1:
        num_computed = seq.get_num_computed_tokens()
        seq.reset_state_for_recompute()
        seq.data.update_num_computed_tokens(num_computed)
