# SPDX-License-Identifier: Apache-2.0
"""Which group is admitted while sequences are set aside with their KV, and which gives up KV when blocks run out.

The `HookScheduler` decides why a sequence is BLOCKED, and when it resumes.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from math import ceil, inf
from typing import Any

from vllm.core.eviction import ChildLengthEstimate
from vllm.core.group_admission import AdapterSlots, GroupAdmission
from vllm.core.hook_queues import HookQueues
from vllm.core.interfaces import AllocStatus
from vllm.core.priority_order import Rank
from vllm.core.scheduler import (
    SchedulerOutputs,
    SchedulerPrefillOutputs,
    SchedulerRunningOutputs,
    SchedulerSwappedInOutputs,
    SchedulingBudget,
)
from vllm.core.shared_blocks import last_copy_into_each
from vllm.sequence import SequenceGroup, SequenceStatus


class AdmittingScheduler(HookQueues):
    """Upstream's scheduler, extended by sequences that are set aside with their KV, and by an order among trees."""

    waiting: deque[SequenceGroup]
    swapped: deque[SequenceGroup]
    running: deque[SequenceGroup]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._estimate = ChildLengthEstimate(self._blocks)
        self._adapters = AdapterSlots(self.lora_config)
        self._admission = GroupAdmission(self.forked, self._priorities, self._adapters)
        self._num_given_up = 0
        """How often a group was preempted or KV was evicted, so far."""

    def _schedule(self) -> SchedulerOutputs:
        if self.forked.has_trees:
            self._admission.note_running(self.running)
            self._make_room()
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
        if self.forked.has_trees:
            self._admission.note_running(self.running)
            self.waiting = deque(sorted(self.waiting, key=self._admission.key))
            self.running = self._admission.crowded_last(self.running)
        if self._priorities.differs:
            self._sort_queues()
            for head in self._admission.heads(self._adapters.of(self.running), self.swapped, self.waiting):
                while self._take_from_less_urgent(head):
                    pass
            self._sort_queues()
        self._admit()
        outputs = super()._schedule()
        for group in self._preempted:
            self._move(group, SequenceStatus.WAITING)
        self._preempted.clear()
        return outputs

    def _sort_queues(self) -> None:
        self.waiting = deque(self._priorities.sorted(self.waiting))
        self.swapped = deque(self._priorities.sorted(self.swapped))
        self.running = deque(self._priorities.sorted(self.running))

    def _admit(self) -> None:
        """Admit forked groups, in order, while there are rows and room; if nothing runs, the first one in any case.

        Groups whose adapters have no slot are passed over.
        """
        num_reserved = 0
        while (head := self._next_forked()) is not None:
            num_wanted = self._estimate.num_wanted(head)
            if not self._free_blocks_for(head, num_reserved + num_wanted):
                break
            num_reserved += num_wanted
            self._move(head, SequenceStatus.RUNNING)
        self.running = deque(self._priorities.sorted(self.running))

    def _next_forked(self) -> SequenceGroup | None:
        """The forked group to admit next; None if there is no row, or a group of another queue goes first."""
        in_use = self._adapters.of(self.running)
        head = self._admission.head(in_use) if self._has_free_row() else None
        return None if head is None or self._must_wait(head, in_use) else head

    def _must_wait(self, forked: SequenceGroup, in_use: set[int]) -> bool:
        """Whether a group of another queue is admitted before ``forked``. The adapters ``in_use`` have slots."""
        return self._admission.must_wait(forked, in_use, self.waiting, self.swapped)

    def _free_blocks_for(self, head: SequenceGroup, num_wanted: int) -> bool:
        """Whether there are enough blocks, once trees that rank after the tree of ``head`` have given up theirs."""
        while self.running and num_wanted > self._blocks.num_free():
            if not self._evict_a_tree(self._priorities.rank(head)):
                return False
        return True

    def _make_room(self) -> None:
        """Take rows, or KV, from the trees that have the most, for requests that have waited and have none."""
        first, shortage = self._admission.first_new(self.waiting), self._admission.shortage
        num_given_up = self.num_cumulative_preemption + self.evictor.evictions.total()
        if num_given_up > self._num_given_up or (first is not None and self._num_missing(first) > 0):
            self._num_given_up = num_given_up
            shortage.note()
        num_rows = self.scheduler_config.max_num_seqs
        victims = self._admission.begin_step(first, num_rows, self.waiting, self.running, self.swapped)
        if first is not None and shortage.is_urgent and self._take_kv(first):
            return
        for victim in victims:
            self._preempt_now(victim)
            self._admission.note_running(self.running)

    def _take_kv(self, first: SequenceGroup) -> bool:
        """Let one BLOCKED group give up KV for the ``first`` new request; return whether one did."""
        num_missing = self._num_missing(first)
        may_evict = num_missing > 0 and self._has_free_row() and not self.evictor.preserves
        return may_evict and self.evictor.evict_one(self._holding_kv(), num_missing)

    def _take_from_less_urgent(self, head: SequenceGroup) -> bool:
        """Let less urgent groups give up some of what ``head`` lacks; False if it lacks or if they have nothing."""
        priority = self._priorities.priority(head)
        less_urgent = [group for group in self.running if self._priorities.priority(group) > priority]
        victims = less_urgent[-1:]
        if self._has_free_row() and not self._adapters.have_room_for(head, self._adapters.of(self.running)):
            victims = self._adapters.users_of_one(less_urgent, self.running)
        elif self._has_free_row():
            num_missing = self._num_missing(head)
            if num_missing <= 0:
                return False
            least = self._priorities.priority(victims[0]) if victims else priority + 1
            if self.evictor.evict_one(self._holding_kv(least), num_missing) or self._evict_a_tree((priority, inf, 0)):
                return True
        for victim in victims:
            self._preempt_now(victim)
        return bool(victims)

    def _num_missing(self, head: SequenceGroup) -> int:
        """Blocks that have to become free before ``head`` is admitted; none unless it is positive."""
        num_free = self._blocks.num_free()
        if head in self.forked:
            return self._estimate.num_wanted(head) - num_free
        is_swapped = head.first_seq.status == SequenceStatus.SWAPPED
        status = self.block_manager.can_swap_in(head, 0) if is_swapped else self.block_manager.can_allocate(head)
        if status != AllocStatus.LATER:
            return 0
        num_wanted = (
            ceil(head.first_seq.get_len() / self.block_manager.block_size) + self.block_manager.watermark_blocks
        )
        return max(1, num_wanted - num_free)

    def _evict_a_tree(self, rank: Rank) -> bool:
        """Let the last tree that ranks after ``rank``, and has no running sequence, give up all its KV.

        Waiting children share their parent's context, so no block becomes free if only one of them gives it up. Without
        this, many trees that each lack a little room would wait for each other, and few sequences would run.
        """
        if self.evictor.preserves:
            return False
        at_work = set(map(self._priorities.rank, self.running))
        holding_kv: dict[Rank, list[SequenceGroup]] = {}
        for group in chain(self.forked, self._holding_kv()):
            found = self._priorities.rank(group)
            if found > rank and found not in at_work and self._blocks.is_on_device(group.first_seq):
                holding_kv.setdefault(found, []).append(group)
        if not holding_kv:
            return False
        for group in holding_kv[max(holding_kv)]:
            self._evict_all(group)
        # Trees come back in the order in which their requests arrived.
        rank_of = self._priorities.rank
        self.waiting = deque(sorted(self.waiting, key=lambda group: (rank_of(group), group.first_seq.seq_id)))
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
        head = self._admission.head(in_use)
        with self._held_back("waiting", self._admission.held_of_waiting(head, in_use, self.waiting, self.swapped)):
            if head is not None and not self._must_wait(head, in_use):
                # A new request would take the room that forked groups wait for, and that they would free at their end.
                return SchedulerPrefillOutputs.create_empty()
            if head is None and any(self.forked.heads()):
                # Forked groups wait for an adapter's slot; requests without an adapter take none.
                curr_loras = self._adapters.all_taken()
            return super()._schedule_prefills(budget, curr_loras, *args, **kwargs)

    def _schedule_swapped(
        self, budget: SchedulingBudget, curr_loras: set[int] | None, enable_chunking: bool = True
    ) -> SchedulerSwappedInOutputs:
        self._blocks.keep_sources()
        # A step copies in before it copies out.
        if self.evictor.swapped_out:
            return SchedulerSwappedInOutputs.create_empty()
        held = self._admission.held_of_swapped(curr_loras or set(), self.swapped, self.waiting)
        with self._held_back("swapped", held):
            # Upstream does not chunk here, so a prefill that is longer than the budget would never come back.
            scheduled = super()._schedule_swapped(budget, curr_loras, enable_chunking)
        # These groups count before others of their trees are admitted in this step.
        admitted = chain(scheduled.decode_seq_groups, scheduled.prefill_seq_groups)
        self._admission.note_started(each.seq_group for each in admitted)
        return scheduled

    @contextmanager
    def _held_back(self, name: str, held: set[SequenceGroup]) -> Iterator[None]:
        """Hide the groups that are ``held`` from upstream's methods; the groups left in the queue keep their order."""
        every = getattr(self, name)
        setattr(self, name, deque(group for group in every if group not in held))
        yield
        left = held.union(getattr(self, name))
        setattr(self, name, deque(group for group in every if group in left))

    def _can_append_slots(self, seq_group: SequenceGroup, enable_chunking: bool) -> bool:
        """Whether a running group has room; BLOCKED parents give up KV before a group is preempted."""
        if not any(map(self._blocks.num_new, seq_group.seqs)):
            return True
        # The running groups are in order here, the least urgent last: upstream preempts from the end.
        least = self._priorities.priority(self.running[-1] if self.running else seq_group)
        self._blocks.keep_sources()
        while (num_missing := self._blocks.num_missing(seq_group.seqs)) > 0:
            if not self.evictor.evict_one(self._holding_kv(least), num_missing):
                return False
            self._blocks.keep_sources()
        return True

    def _is_stuck(self, outputs: SchedulerOutputs) -> bool:
        idle = outputs.is_empty() and not outputs.ignored_seq_groups
        return idle and bool(self.waiting or self.swapped or self.forked)

    def _evict_one(self) -> bool:
        """Let one group give up KV, because no group can run; return False if no group has any."""
        if self.evictor.evict_one(self._holding_kv(), self.block_manager.num_total_gpu_blocks, is_last_resort=True):
            return True
        in_turn = chain(reversed(list(self.forked)), list(self._kept.groups()), reversed(self.blocked))
        for group in sorted(in_turn, key=self._priorities.priority, reverse=True):
            if self._blocks.is_on_device(group.first_seq):
                self._evict_all(group)
                return True
        return False

    def _evict_all(self, group: SequenceGroup) -> None:
        self.evictor.evictions["discard"] += 1
        self.evictor.evict_all(group)
        if group in self.forked:
            self._move(group, SequenceStatus.WAITING)

    def _holding_kv(self, least: float = -inf) -> Iterator[SequenceGroup]:
        """The groups that are set aside with their KV: BLOCKED, or finished and kept for a join.

        Args:
            least: Groups that are more urgent than this priority are left out.
        """
        groups = chain(self.blocked, self._kept.groups())
        return (group for group in groups if self._priorities.priority(group) >= least)
