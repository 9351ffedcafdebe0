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

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby
from typing import Any

from vllm.core.priority_scheduler import PriorityScheduler
from vllm.core.scheduler import SchedulerOutputs
from vllm.core.transitions import IllegalTransition
from vllm.hooks.branch import Branch, branch_of
from vllm.hooks.config import SpecialKwargs
from vllm.hooks.injection import KVCopy, inject, spliced_of
from vllm.hooks.merge import Span
from vllm.hooks.results import Join
from vllm.hooks.splice import HookedMetadata, SlotCopy
from vllm.hooks.stats import HookStats
from vllm.sequence import Sequence, SequenceGroup, SequenceGroupMetadata, SequenceStatus


class HookScheduler(PriorityScheduler):
    """The life of BLOCKED parents and of children.

    Children are noticed as ended at the next `schedule`, whatever ended them, so a join never changes a
    running step.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unsettled: dict[Branch, bool] = {}
        """An ordered set: parents to look at in the next `schedule`."""

        self.stats = HookStats()
        self._finished_at_join: list[SequenceGroup] = []
        self._told_later: deque[list[str]] = deque([[], [], []])
        self._slot_copies: dict[SequenceGroup, tuple[SlotCopy, ...]] = {}
        """Of this step."""

        self._join: Callable[[Branch], tuple[Join, list[Span]]]
        self._special_kwargs: SpecialKwargs

    def attach(self, join: Callable[[Branch], tuple[Join, list[Span]]], special_kwargs: SpecialKwargs) -> None:
        """Set what the hooks know.

        Args:
            join: Appends the results of a branch's children to it, just before it resumes.
        """
        self._join, self._special_kwargs = join, special_kwargs
        self.set_policy(special_kwargs.blocked_kv_policy)

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
        self.stats.num_spawned += 1

    def block(self, branch: Branch) -> None:
        """Set a running parent aside until all its children have finished."""
        self._move(branch.seq_group, SequenceStatus.BLOCKED)
        branch.blocked_since = time.monotonic()
        self._look_at(branch)

    def resume(self, branch: Branch) -> None:
        """Let a parent go on that was blocked until a caller resumes it, once its children have finished."""
        branch.awaits_resume = False
        self._look_at(branch)

    def end(self, branch: Branch) -> None:
        """Note that a sequence has finished. With unjoined children it is BLOCKED until they have too."""
        branch.note_end()
        if branch.unjoined:
            self._kept.release(branch)
            branch.end_status = branch.seq.status
            self.block(branch)
        elif branch.parent is not None:
            self._admission.note_end(branch.seq)
            self._look_at(branch.parent)

    def free_seq(self, seq: Sequence) -> None:
        """Give back the blocks of a sequence, unless they are kept for its parent."""
        branch: Branch | None = getattr(seq, "branch", None)
        if branch is not None and self._is_wanted(branch):
            self._kept.keep(branch)
        elif not self._kept.holds(seq):
            super().free_seq(seq)

    def schedule(self) -> tuple[Any, SchedulerOutputs, bool]:
        """Upstream's `schedule`, after joining the parents and admitting the children that can go on."""
        self._settle()
        metadata, outputs, allow_async_output_proc = super().schedule()
        if self._special_kwargs.injects_kv:
            groups = [entry.seq_group for entry in outputs.scheduled_seq_groups]
            metadata = list(map(self._with_injection, metadata, groups))
        outputs.ignored_seq_groups = [group for group in outputs.ignored_seq_groups if self._end_ignored(group)]
        outputs.ignored_seq_groups += self._finished_at_join
        self._finished_at_join = []
        return metadata, outputs, allow_async_output_proc

    def get_and_reset_finished_requests_ids(self) -> list[str]:
        """Upstream's, and what ended at a join two steps ago.

        Upstream's engine forgets the samples (n > 1) that this returns, and makes their outputs in the same step or,
        asynchronously, in the next.
        """
        self._told_later.append([])
        return [*super().get_and_reset_finished_requests_ids(), *self._told_later.popleft()]

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
                self.free_seq(group.first_seq)
                self._finished_requests_ids.append(group.request_id)
        aborted_ids = request_ids | {branch.seq_group.request_id for branch in doomed}
        # The others finish their request without it, and upstream finds it by its own id.
        for request_id in aborted_ids & samples.keys():
            samples.pop(request_id).to_be_finished.pop(request_id, None)
        super().abort_seq_group(aborted_ids, samples)
        for branch in doomed:
            branch.note_end()
            self._kept.release(branch)
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
            waits = branch.awaits_resume or branch.has_unfinished_children
            if branch.seq.status == SequenceStatus.BLOCKED and not waits:
                self._resume(branch)

    def _resume(self, branch: Branch) -> None:
        group = branch.seq_group
        # A child that ended in the same round may have asked for another look.
        self._unsettled.pop(branch, None)
        children = branch.unjoined
        join, spans = self._join(branch)
        if branch.end_status is None:
            self._make_ready(branch, spans)
            join = replace(join, num_prefill=group.get_num_uncomputed_tokens())
        if not self._kept.has_children_of(branch):
            branch.forget_joined()
        branch.joins.append(join)
        self.stats.note_join(join, children, time.monotonic() - branch.blocked_since)
        if branch.end_status is not None:
            self._finish(branch, branch.end_status)
            return
        is_swapped = self._has_blocks(group) and not self._blocks.is_on_device(branch.seq)
        self._move(group, SequenceStatus.SWAPPED if is_swapped else SequenceStatus.WAITING)

    def _make_ready(self, branch: Branch, spans: list[Span]) -> None:
        """Make a prefill of what a parent has to compute, once ``spans`` were appended to it."""
        spliced = None
        if self._special_kwargs.injects_kv and self._blocks.is_on_device(branch.seq):
            spliced = inject(branch, spans, self._special_kwargs.position_rule, self._kept.num_computed)
        if spliced is not None:
            branch.spliced = spliced
            _make_prefill(branch.seq, len(spliced.glue))
            return
        self._kept.release(branch)
        if self._has_blocks(branch.seq_group):
            _make_prefill(branch.seq, branch.seq.data.get_num_uncomputed_tokens())

    def _append_slots(
        self, seq_group: SequenceGroup, blocks_to_copy: list[tuple[int, int]], enable_chunking: bool = False
    ) -> None:
        spliced = spliced_of(seq_group.first_seq)
        if spliced is not None and spliced.copies:
            self._blocks.leave_cache(seq_group.first_seq)
        super()._append_slots(seq_group, blocks_to_copy, enable_chunking)
        if spliced is not None and spliced.copies:
            self._slot_copies[seq_group] = tuple(self._to_slots(seq_group.first_seq, spliced.copies))
            spliced.copies = []

    def _to_slots(self, seq: Sequence, copies: list[KVCopy]) -> Iterator[SlotCopy]:
        destinations = self._blocks.slots(seq, (copy.parent_index for copy in copies))
        for source, group in groupby(zip(copies, destinations, strict=True), key=lambda pair: pair[0].source):
            pairs = list(group)
            slots = self._blocks.slots(source.seq, (copy.source_index for copy, _ in pairs))
            for (copy, destination), slot in zip(pairs, slots, strict=True):
                yield SlotCopy(slot, destination, copy.source_position, copy.position)

    def _with_injection(self, metadata: SequenceGroupMetadata, group: SequenceGroup) -> SequenceGroupMetadata:
        """``metadata`` with what its worker has to know of injected KV."""
        spliced = spliced_of(group.first_seq)
        if spliced is None:
            return metadata
        copies = self._slot_copies.pop(group, ())
        if copies:
            # The step is scheduled: what is freed now is not written before it has run.
            self._kept.release(group.first_seq.branch)
        runs = spliced.take_runs(metadata.token_chunk_size)
        if not copies and not runs and not spliced.position_offset:
            return metadata
        return HookedMetadata.of(metadata, slot_copies=copies, runs=runs, position_offset=spliced.position_offset)

    def _finish(self, branch: Branch, status: SequenceStatus) -> None:
        branch.end_status, branch.has_ended_at_join = None, True
        self._kept.release(branch)
        self._move(branch.seq_group, status)
        # Upstream emits the output of a group that ends outside a step by this list.
        self._finished_at_join.append(branch.seq_group)
        self.end(branch)
        self.free_seq(branch.seq_group.first_seq)
        self._told_later[-1].append(branch.seq_group.request_id)

    def _end_ignored(self, group: SequenceGroup) -> bool:
        """Note the end of a group that can never fit; False where it waits for its children first."""
        branch = branch_of(group)
        if branch is not None:
            self.end(branch)
        return group.is_finished()

    def _is_wanted(self, branch: Branch) -> bool:
        """Whether a sequence has ended with KV that its parent will get."""
        if not self._special_kwargs.injects_kv or branch.parent is None or self._kept.holds(branch.seq):
            return False
        has_result = branch.seq.is_finished() and not branch.has_failed and self._has_blocks(branch.seq_group)
        return has_result and branch.parent.end_status is None and not branch.parent.seq.is_finished()


def _make_prefill(seq: Sequence, num_uncomputed: int) -> None:
    """Let a sequence that has decoded prefill so many tokens; the others have their KV."""
    if num_uncomputed > 1:
        seq.reset_state_for_recompute()
        seq.data.update_num_computed_tokens(seq.get_len() - num_uncomputed)
