# SPDX-License-Identifier: Apache-2.0
"""Who is admitted while sequences are set aside with their KV, and who gives up KV when blocks run out.

The `HookScheduler` decides why a sequence is BLOCKED, and when it goes on.
"""

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any

from vllm.core.adapter_slots import AdapterSlots
from vllm.core.eviction import ChildLengthEstimate, KVEvictor
from vllm.core.hook_queues import HookQueues
from vllm.core.hooked_sequence import injected_into
from vllm.core.kept import KeptKV
from vllm.core.priority_order import Rank
from vllm.core.scheduler import (
    PreemptionMode,
    SchedulerOutputs,
    SchedulerPrefillOutputs,
    SchedulerRunningOutputs,
    SchedulerSwappedInOutputs,
    SchedulingBudget,
)
from vllm.core.shared_blocks import last_copy_into_each
from vllm.sequence import SequenceGroup, SequenceStatus


class EvictingScheduler(HookQueues):
    """Upstream's scheduler, extended by sequences that are set aside with their KV."""

    evictor: KVEvictor
    waiting: deque[SequenceGroup]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._estimate = ChildLengthEstimate(self._blocks)
        self._adapters = AdapterSlots(self.lora_config)
        self._kept = KeptKV(self._blocks)
        self._preempted: list[SequenceGroup] = []
        """Groups preempted in this step that have a block table; upstream puts them into `waiting`."""

    def _schedule(self) -> SchedulerOutputs:
        self.evictor.costs.end_step()
        outputs = self._schedule_once()
        # Groups that cannot be scheduled may need blocks held by groups that wait for them.
        while self._is_stuck(outputs) and self._evict_one():
            outputs = self._schedule_once()
        self._blocks.release_sources()
        outputs.blocks_to_copy = last_copy_into_each(outputs.blocks_to_copy)
        outputs.blocks_to_swap_out += self.evictor.take_swapped_out()
        num_swapped = len(outputs.blocks_to_swap_out) + len(outputs.blocks_to_swap_in)
        self.evictor.costs.begin_step(outputs.num_batched_tokens, num_swapped)
        return outputs

    def _schedule_once(self) -> SchedulerOutputs:
        self._admit()
        outputs = super()._schedule()
        for group in self._preempted:
            self._move(group, SequenceStatus.WAITING)
        self._preempted.clear()
        return outputs

    def _admit(self) -> None:
        """Admit forked groups, in order, while there are slots and room; if nothing runs, the first one in any case.

        Groups whose adapters have no slot are passed over.
        """
        num_reserved = 0
        while self.forked and self._has_free_slot():
            in_use = self._adapters.of(self.running)
            head = self._adapters.first_with_room(self.forked.heads(), in_use)
            if head is None or self._must_wait(head, in_use):
                return
            num_wanted = self._estimate.num_wanted(head)
            while self.running and num_wanted > self._blocks.num_free() - num_reserved:
                if not self._evict_a_tree(self._order.rank(head)):
                    return
            num_reserved += num_wanted
            self._move(head, SequenceStatus.RUNNING)

    def _must_wait(self, forked: SequenceGroup, in_use: set[int]) -> bool:
        """Whether a group of another queue is admitted before ``forked``. The adapters ``in_use`` have slots."""
        return False

    def _evict_a_tree(self, rank: Rank) -> bool:
        """Let the last tree that ranks after ``rank``, and has no running sequence, give up all its KV.

        Waiting children hold their parent's context, and free nothing if one of them gives up what all share. Without
        this, many trees that each lack a little room would wait for each other, and few sequences would run.
        """
        if self.evictor.preserves:
            return False
        at_work = set(map(self._order.rank, self.running))
        holding_kv: dict[Rank, list[SequenceGroup]] = {}
        for group in chain(self.forked, self._holding_kv()):
            found = self._order.rank(group)
            if found > rank and found not in at_work and self._blocks.is_on_device(group.first_seq):
                holding_kv.setdefault(found, []).append(group)
        if not holding_kv:
            return False
        for group in holding_kv[max(holding_kv)]:
            self._evict_all(group)
        # They come back in the order in which their requests arrived.
        self.waiting = deque(sorted(self.waiting, key=lambda group: (self._order.rank(group), group.first_seq.seq_id)))
        return True

    def _schedule_running(
        self, budget: SchedulingBudget, curr_loras: set[int] | None, *args: Any, **kwargs: Any
    ) -> SchedulerRunningOutputs:
        """Upstream's `_schedule_running`, after which ``curr_loras`` has the adapters of all running groups.

        Upstream forgets the adapter of a group that it preempts, even if others of this step use it too.
        """
        scheduled = super()._schedule_running(budget, curr_loras, *args, **kwargs)
        if curr_loras is not None and self._adapters.is_limited:
            at_work = chain(scheduled.decode_seq_groups_list, scheduled.prefill_seq_groups_list, self.running)
            curr_loras.clear()
            curr_loras |= self._adapters.of(at_work)
        return scheduled

    def _schedule_prefills(
        self, budget: SchedulingBudget, curr_loras: set[int] | None, *args: Any, **kwargs: Any
    ) -> SchedulerPrefillOutputs:
        in_use = curr_loras or set()
        head = self._adapters.first_with_room(self.forked.heads(), in_use)
        if head is not None and not self._must_wait(head, in_use):
            # A new request would take the room that forked groups wait for, and that they would free when they end.
            return SchedulerPrefillOutputs.create_empty()
        if head is None and any(self.forked.heads()):
            # They wait for an adapter's slot, of which requests without an adapter take none.
            curr_loras = self._adapters.all_taken()
        return super()._schedule_prefills(budget, curr_loras, *args, **kwargs)

    def _schedule_swapped(
        self, budget: SchedulingBudget, curr_loras: set[int] | None, enable_chunking: bool = True
    ) -> SchedulerSwappedInOutputs:
        self._blocks.keep_sources()
        # A step copies in before it copies out.
        if self.evictor.swapped_out:
            return SchedulerSwappedInOutputs.create_empty()
        # Upstream does not chunk here, so a prefill that is longer than the budget would never come back.
        return super()._schedule_swapped(budget, curr_loras, enable_chunking)

    def _can_append_slots(self, seq_group: SequenceGroup, enable_chunking: bool) -> bool:
        """Whether a running group has room; BLOCKED parents give up KV before a group is preempted."""
        if not any(map(self._blocks.num_new, seq_group.seqs)):
            return True
        self._blocks.keep_sources()
        while (num_missing := self._blocks.num_missing(seq_group.seqs)) > 0:
            if not self.evictor.evict_one(self._victims_before(seq_group), num_missing):
                return False
            self._blocks.keep_sources()
        return True

    def _victims_before(self, running: SequenceGroup) -> Iterator[SequenceGroup]:
        """The groups that give up KV before any group is preempted for ``running``."""
        return self._holding_kv()

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

    def _append_slots(
        self, seq_group: SequenceGroup, blocks_to_copy: list[tuple[int, int]], enable_chunking: bool = False
    ) -> None:
        num_before = len(blocks_to_copy)
        super()._append_slots(seq_group, blocks_to_copy, enable_chunking)
        if len(blocks_to_copy) > num_before:
            self._blocks.note_copies(blocks_to_copy[num_before:])

    def _is_stuck(self, outputs: SchedulerOutputs) -> bool:
        idle = outputs.is_empty() and not outputs.ignored_seq_groups
        return idle and bool(self.waiting or self.swapped or self.forked)

    def _evict_one(self) -> bool:
        """Let one group give up KV, because none can run; return False if none of them has any."""
        if self.evictor.evict_one(self._holding_kv(), self.block_manager.num_total_gpu_blocks, is_last_resort=True):
            return True
        in_turn = chain(reversed(list(self.forked)), list(self._kept.groups()), reversed(self.blocked))
        for group in sorted(in_turn, key=self._order.priority, reverse=True):
            if self._blocks.is_on_device(group.first_seq):
                self._evict_all(group)
                return True
        return False

    def _evict_all(self, group: SequenceGroup) -> None:
        self.evictor.evictions["discard"] += 1
        self.evictor.evict_all(group)
        if group in self.forked:
            self._move(group, SequenceStatus.WAITING)

    def _holding_kv(self) -> Iterator[SequenceGroup]:
        """The groups that are set aside with their KV: BLOCKED, or finished and kept for a join."""
        return chain(self.blocked, self._kept.groups())
