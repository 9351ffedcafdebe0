# SPDX-License-Identifier: Apache-2.0
"""Upstream's scheduler with two more queues: BLOCKED groups, and groups that wait with a block table.

One method changes a sequence's status together with its queue. An observer is told of all events in the queues.
"""

from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from sequence_hooks.admission.order import AdmissionOrder
from sequence_hooks.trace import events
from sequence_hooks.trace.observer import NO_RECORDER, Observer
from sequence_hooks.tree.integrity import IntegrityError, check_queues
from vllm.core.eviction import KVEvictor
from vllm.core.hooked_sequence import branch_of, injected_into
from vllm.core.kept import KeptKV
from vllm.core.priority_order import PriorityOrder
from vllm.core.recorder import SchedulerRecorder
from vllm.core.scheduler import PreemptionMode, Scheduler
from vllm.core.shared_blocks import SharedBlocks
from vllm.sequence import SequenceGroup, SequenceGroupMetadata, SequenceStatus

_LEGAL = {
    SequenceStatus.WAITING: {
        SequenceStatus.RUNNING,
        SequenceStatus.WAITING,
        SequenceStatus.BLOCKED,
        SequenceStatus.FINISHED_ABORTED,
    },
    SequenceStatus.RUNNING: {SequenceStatus.BLOCKED, SequenceStatus.WAITING},
    SequenceStatus.SWAPPED: {SequenceStatus.BLOCKED},
    SequenceStatus.FINISHED_STOPPED: {SequenceStatus.BLOCKED},
    SequenceStatus.FINISHED_LENGTH_CAPPED: {SequenceStatus.BLOCKED},
    SequenceStatus.FINISHED_IGNORED: {SequenceStatus.BLOCKED},
    SequenceStatus.BLOCKED: set(SequenceStatus) - {SequenceStatus.BLOCKED, SequenceStatus.RUNNING},
}
"""Which status may follow which, when hooks change it; upstream's own changes are not checked."""

_STATUS_IN = {
    "waiting": SequenceStatus.WAITING,
    "running": SequenceStatus.RUNNING,
    "swapped": SequenceStatus.SWAPPED,
    "blocked": SequenceStatus.BLOCKED,
    "forked": SequenceStatus.WAITING,
}
"""The status of the groups in each queue, between two steps."""


class IllegalTransition(RuntimeError):
    """A sequence was asked to go from its status to one that cannot follow it."""


class HookQueues(Scheduler):
    """Only `_move` changes the status and the queue of a sequence, apart from upstream's own transitions."""

    waiting: deque[SequenceGroup]
    evictor: KVEvictor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._blocks = SharedBlocks(self.block_manager)
        self._kept = KeptKV(self._blocks)
        self.blocked: dict[SequenceGroup, None] = {}
        """In the order in which they were set aside."""

        self._priorities = PriorityOrder(self.scheduler_config.policy)
        self.forked: AdmissionOrder[SequenceGroup] = AdmissionOrder(self._priorities.priority)
        """Groups that are WAITING with a block table, until there are a free row and room for them."""

        self._preempted: list[SequenceGroup] = []
        """Groups preempted in this step that have a block table; upstream puts them into `waiting`."""

        self.recorder = SchedulerRecorder(NO_RECORDER)

    def observe(self, observer: Observer) -> None:
        """Tell ``observer`` of all events from now on."""
        self.recorder = SchedulerRecorder(observer)
        manager = self.block_manager
        observer.note(events.SchedulerStarted, block_size=manager.block_size, num_blocks=manager.num_total_gpu_blocks)

    def add_seq_group(self, seq_group: SequenceGroup) -> None:
        """Upstream's `add_seq_group`, which also notes that a request has arrived."""
        super().add_seq_group(seq_group)
        self.forked.num_arrived = seq_group.first_seq.seq_id + 1
        self.recorder.arrived(seq_group)

    def has_unfinished_seqs(self) -> bool:
        return super().has_unfinished_seqs() or bool(self.blocked or self.forked)

    def get_num_unfinished_seq_groups(self) -> int:
        return super().get_num_unfinished_seq_groups() + len(self.blocked) + len(self.forked)

    def num_blocks_of_blocked(self) -> int:
        """Blocks on the device that BLOCKED sequences hold, each counted once."""
        tables = (self.block_manager.block_tables.get(group.first_seq.seq_id) for group in self.blocked)
        held = {block for table in tables if table is not None for block in table.physical_block_ids}
        return sum(map(self._blocks.is_device_block, held))

    def check_integrity(self) -> None:
        """Raise an `IntegrityError` that lists all the counts, unless queues and blocks add up."""
        queues: dict[str, Collection[SequenceGroup]] = {name: getattr(self, name) for name in _STATUS_IN}
        check_queues({name: [group.request_id for group in groups] for name, groups in queues.items()})
        for name, groups in queues.items():
            for group in groups:
                if group.first_seq.status != _STATUS_IN[name]:
                    raise IntegrityError(
                        f"{group.request_id} is {group.first_seq.status.name}, and is in the queue {name!r}"
                    )
        for pool in self._blocks.pools():
            pool.check()

    def free_finished_seq_groups(self) -> None:
        """Upstream's `free_finished_seq_groups`, after which a step has ended."""
        super().free_finished_seq_groups()
        self.note_if_idle()

    def note_if_idle(self) -> None:
        """Note that the last step has ended, if no other step follows."""
        if self.recorder.is_recording and not self.has_unfinished_seqs():
            self.note_step(self.recorder.now(), [])

    def note_step(self, start: float, scheduled: list[tuple[SequenceGroupMetadata, SequenceGroup]]) -> None:
        """Note a step that started at ``start``, in seconds."""
        num_used = self.block_manager.num_total_gpu_blocks - self._blocks.num_free()
        num_waiting = len(self.waiting) + len(self.forked) + len(self.swapped)
        self.recorder.step(
            start,
            scheduled,
            num_used_blocks=num_used,
            num_unshared_blocks=self._blocks.num_unshared(),
            num_blocked=len(self.blocked),
            num_waiting=num_waiting,
        )

    def _preempt(self, seq_group: SequenceGroup, blocks_to_swap_out: list[tuple[int, int]]) -> PreemptionMode:
        seq, wants_swap = seq_group.first_seq, self.user_specified_preemption_mode == "swap"
        injected = injected_into(seq)
        # In swap space it would wait for room that its children's KV takes until it is copied.
        is_still_copied = injected is not None and bool(injected.copies)
        # Upstream's method ends the engine if there is no room in swap space.
        if wants_swap and (is_still_copied or not self._blocks.can_swap_out(seq)):
            self._preempt_by_recompute(seq_group)
            return PreemptionMode.RECOMPUTE
        return super()._preempt(seq_group, blocks_to_swap_out)

    def _preempt_by_recompute(self, seq_group: SequenceGroup) -> None:
        """Upstream's `_preempt_by_recompute`, but blocks that the sequence shares are kept: that costs nothing."""
        num_before = self.evictor.num_recomputed
        self.evictor.evict(seq_group)
        self.recorder.preempted(seq_group.request_id, "discard", self.evictor.num_recomputed - num_before)
        if self._has_blocks(seq_group):
            self._preempted.append(seq_group)
        else:
            super()._preempt_by_recompute(seq_group)

    def _preempt_now(self, victim: SequenceGroup) -> None:
        """Preempt a running group before the step is scheduled, and put it into the queue of its new status."""
        if self.output_proc_callback is not None:
            # Its latest token is not processed yet, and may end it.
            self.output_proc_callback(request_id=victim.request_id)
        if victim.is_finished():
            self.running.remove(victim)
            self._free_finished_seq_group(victim)
            return
        swapped_out: list[tuple[int, int]] = []
        mode = self._preempt(victim, swapped_out)
        if victim in self._preempted:
            self._preempted.remove(victim)
            self._move(victim, SequenceStatus.WAITING)
            return
        self.running.remove(victim)
        if mode == PreemptionMode.SWAP:
            self.swapped.append(victim)
            self.evictor.swapped_out += swapped_out
        else:
            self.waiting.appendleft(victim)

    def _preempt_by_swap(self, seq_group: SequenceGroup, blocks_to_swap_out: list[tuple[int, int]]) -> None:
        super()._preempt_by_swap(seq_group, blocks_to_swap_out)
        self.recorder.preempted(seq_group.request_id, "swap", 0)

    def _swap_in(self, seq_group: SequenceGroup, blocks_to_swap_in: list[tuple[int, int]]) -> None:
        super()._swap_in(seq_group, blocks_to_swap_in)
        self.recorder.swapped_in(seq_group)

    def _move(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """Change the status of a group's sequence together with its queue."""
        current = group.first_seq.status
        if status not in _LEGAL.get(current, ()):
            raise IllegalTransition(f"{group.request_id} cannot go from {current.name} to {status.name}")
        self._leave_queue(group)
        group.first_seq.status = status
        if status == SequenceStatus.RUNNING:
            self.running.append(group)
            branch = branch_of(group)
            if branch is not None:
                self.forked.start(branch, group)
        elif status == SequenceStatus.BLOCKED:
            self.blocked[group] = None
        elif status == SequenceStatus.SWAPPED:
            self.swapped.append(group)
        elif status == SequenceStatus.WAITING:
            if self._has_blocks(group):
                self.forked.appendleft(branch_of(group), group)
            else:
                self.waiting.appendleft(group)

    def _leave_queue(self, group: SequenceGroup) -> None:
        if group in self.forked:
            self.forked.remove(group)
        elif group in self.blocked:
            del self.blocked[group]
        else:
            # Upstream's queues have to be searched.
            queues = self.running, self.swapped, self.waiting
            with suppress(ValueError):
                next((queue for queue in queues if group in queue), self.waiting).remove(group)

    def _has_blocks(self, group: SequenceGroup) -> bool:
        return group.first_seq.seq_id in self.block_manager.block_tables

    def _has_free_row(self) -> bool:
        return len(self.running) < self.scheduler_config.max_num_seqs
