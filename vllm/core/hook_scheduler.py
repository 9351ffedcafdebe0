# SPDX-License-Identifier: Apache-2.0
"""The scheduler of an engine with sequence hooks: it owns what upstream's queues don't know.

A child comes in with its parent's block table forked. A BLOCKED parent is not scheduled, and keeps its
blocks unless others need them; once its children have finished it is joined and scheduled again:

    spawn              WAITING (forked) ──► RUNNING
    promise, sync      RUNNING ──► BLOCKED
    its own end        FINISHED_* ──► BLOCKED, with children still unjoined
    children finished  BLOCKED ──► WAITING (forked)  KV kept, or some of it: prefills what is uncomputed
                               ──► WAITING           KV given up: recomputed
                               ──► SWAPPED           KV in swap space: copied back, prefills what is new
                               ──► FINISHED_*        it had ended, or has no room left
    preempted          RUNNING ──► WAITING (forked)  its prefix is shared and kept: recomputes what is its own
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from vllm.core.parking_scheduler import IllegalTransition, ParkingScheduler
from vllm.core.scheduler import SchedulerOutputs
from vllm.hooks.branch import Branch, branch_of
from vllm.hooks.config import BlockedKVPolicy
from vllm.hooks.results import Join
from vllm.sequence import SequenceGroup, SequenceStatus


class HookScheduler(ParkingScheduler):
    """The life of BLOCKED parents and of children.

    Children are noticed as ended at the next `schedule`, whatever ended them, so a join never changes a
    running step.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unsettled: dict[Branch, bool] = {}
        """An ordered set: parents to look at in the next `schedule`."""

        self._finished_at_join: list[SequenceGroup] = []
        self._join: Callable[[Branch], Join]

    def attach(self, join: Callable[[Branch], Join], policy: BlockedKVPolicy) -> None:
        """Set what the hooks know.

        Args:
            join: Splices the results of a branch's children into it, just before it resumes.
            policy: What becomes of a BLOCKED parent's KV.
        """
        self._join = join
        self.set_policy(policy)

    def spawn(self, child: Branch) -> None:
        """Take in a child of a running parent; it runs as soon as there is a slot and room.

        Raises:
            IllegalTransition: the parent has no block table to share.
        """
        assert child.parent is not None
        if not self._has_blocks(child.parent.seq_group):
            raise IllegalTransition(f"{child.parent.seq_group.request_id} spawns without a block table")
        self._blocks.fork(child.parent.seq, child.seq)
        self.forked.append(child.seq_group)

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
            self._admission.note_end(branch.seq)
            self._look_at(branch.parent)

    def schedule(self) -> tuple[Any, SchedulerOutputs, bool]:
        """Upstream's `schedule`, after joining the parents and admitting the children that can go on."""
        self._settle()
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
        queues = chain(self.waiting, self.running, self.swapped, self.blocked, self.forked)
        branches = [branch for branch in map(branch_of, queues) if branch is not None]
        doomed = [branch for branch in branches if branch.is_below(request_ids, samples)]
        for branch in doomed:
            group = branch.seq_group
            if group in self.blocked or group in self.forked:
                self._move(group, SequenceStatus.FINISHED_ABORTED)
                self._release(group)
                samples.pop(group.request_id, None)
        super().abort_seq_group(request_ids | {branch.seq_group.request_id for branch in doomed}, samples)
        for branch in doomed:
            branch.note_end()
            self._unsettled.pop(branch, None)
            if branch.parent is not None and not branch.parent.seq.is_finished():
                self._look_at(branch.parent)

    def is_waiting_for_callers(self) -> bool:
        """Whether nothing can go on until a caller resumes a sequence."""
        can_go_on = self.waiting or self.running or self.swapped or self.forked or self._unsettled
        return bool(self.blocked) and not can_go_on

    def _look_at(self, branch: Branch) -> None:
        """Have the next `schedule` see whether ``branch`` can go on."""
        self._unsettled[branch] = True

    def _settle(self) -> None:
        unsettled, self._unsettled = self._unsettled, {}
        for branch in unsettled:
            waits = branch.awaits_resume or branch.num_unfinished_children
            if branch.seq.status == SequenceStatus.BLOCKED and not waits:
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
        is_swapped = self._has_blocks(group) and not self._blocks.is_on_device(group.first_seq)
        self._move(group, SequenceStatus.SWAPPED if is_swapped else SequenceStatus.WAITING)
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

    def _release(self, group: SequenceGroup) -> None:
        self.free_seq(group.first_seq)
        self._finished_requests_ids.append(group.request_id)


def _make_prefill(group: SequenceGroup) -> None:
    """Let a sequence that has decoded prefill what was merged into it, behind what is computed."""
    seq = group.first_seq
    if seq.data.get_num_uncomputed_tokens() > 1:
        num_computed = seq.get_num_computed_tokens()
        seq.reset_state_for_recompute()
        seq.data.update_num_computed_tokens(num_computed)
