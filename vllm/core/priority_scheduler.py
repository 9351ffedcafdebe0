# SPDX-License-Identifier: Apache-2.0
"""``scheduling_policy="priority"`` for trees. With "fcfs" all are equally urgent, and nothing here has an effect.

Upstream ignores priorities if prefills are chunked, and hooks need chunked prefill. Here

- every queue is in order of priority, so the least urgent running group is preempted first;
- no group is admitted before a more urgent one of another queue that waits for the same slots and blocks;
- a waiting group takes what it lacks (a slot, an adapter's slot, blocks) from less urgent ones that run or hold KV;
- a BLOCKED parent gives up KV for running groups only while no running group is less urgent than it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from math import ceil, inf
from typing import Any

from vllm.core.evicting_scheduler import EvictingScheduler
from vllm.core.interfaces import AllocStatus
from vllm.core.scheduler import (
    PreemptionMode,
    SchedulerOutputs,
    SchedulerPrefillOutputs,
    SchedulerSwappedInOutputs,
    SchedulingBudget,
)
from vllm.sequence import SequenceGroup, SequenceStatus


class PriorityScheduler(EvictingScheduler):
    """`EvictingScheduler`, extended by an order of priority among groups."""

    swapped: deque[SequenceGroup]
    running: deque[SequenceGroup]

    def _schedule_once(self) -> SchedulerOutputs:
        if self._order.differs:
            self._sort_queues()
            for head in self._heads():
                while self._take_from_less_urgent(head):
                    pass
            self._sort_queues()
        return super()._schedule_once()

    def _admit(self) -> None:
        super()._admit()
        if self._order.differs:
            self.running = deque(self._order.sorted(self.running))

    def _must_wait(self, forked: SequenceGroup, in_use: set[int]) -> bool:
        if not self._order.differs:
            return super()._must_wait(forked, in_use)
        return self._order.priority(forked) > self._priority_of_first(in_use, self.swapped, self.waiting)

    def _schedule_swapped(
        self, budget: SchedulingBudget, curr_loras: set[int] | None, enable_chunking: bool = True
    ) -> SchedulerSwappedInOutputs:
        if not self._order.differs:
            return super()._schedule_swapped(budget, curr_loras, enable_chunking)
        limit = self._priority_of_first(curr_loras or set(), self.forked.heads(), self.waiting)
        behind = self._split_off(self.swapped, lambda priority: priority > limit)
        scheduled = super()._schedule_swapped(budget, curr_loras, enable_chunking)
        self.swapped.extend(behind)
        return scheduled

    def _schedule_prefills(
        self, budget: SchedulingBudget, curr_loras: set[int] | None, *args: Any, **kwargs: Any
    ) -> SchedulerPrefillOutputs:
        if not self._order.differs:
            return super()._schedule_prefills(budget, curr_loras, *args, **kwargs)
        queues = self.swapped, self.forked.heads()
        swapped, forked = (self._priority_of_first(curr_loras or set(), queue) for queue in queues)
        behind = self._split_off(self.waiting, lambda priority: priority > min(swapped, forked))
        scheduled = super()._schedule_prefills(budget, curr_loras, *args, **kwargs)
        self.waiting.extend(behind)
        return scheduled

    def _victims_before(self, running: SequenceGroup) -> Iterator[SequenceGroup]:
        victims = super()._victims_before(running)
        if not self._order.differs:
            return victims
        # The running groups are in order here, the least urgent last: upstream preempts from the end.
        least = self._order.priority(self.running[-1] if self.running else running)
        return (group for group in victims if self._order.priority(group) >= least)

    def _sort_queues(self) -> None:
        self.waiting = deque(self._order.sorted(self.waiting))
        self.swapped = deque(self._order.sorted(self.swapped))
        self.running = deque(self._order.sorted(self.running))

    def _split_off(self, queue: deque[SequenceGroup], is_behind: Callable[[float], bool]) -> list[SequenceGroup]:
        """Remove from a sorted queue, and return, the groups whose priority ``is_behind`` holds for: its last ones."""
        behind = [group for group in queue if is_behind(self._order.priority(group))]
        for _ in behind:
            queue.pop()
        return behind

    def _priority_of_first(self, in_use: set[int], *queues: Any) -> float:
        return min(map(self._order.priority, self._first_of_each(in_use, *queues)), default=inf)

    def _first_of_each(self, in_use: set[int], *queues: Any) -> Iterator[SequenceGroup]:
        """Of each queue, the most urgent group that does not wait for its adapter's slot."""
        firsts = (self._adapters.first_with_room(queue, in_use) for queue in queues)
        return (group for group in firsts if group is not None)

    def _heads(self) -> list[SequenceGroup]:
        """The groups that may take from others: each queue's most urgent, and its most urgent with an adapter slot."""
        queues = list(self.forked.heads()), self.swapped, self.waiting
        at_head = [next(iter(queue)) for queue in queues if queue]
        able = self._first_of_each(self._adapters.of(self.running), *queues)
        return self._order.sorted(dict.fromkeys(chain(at_head, able)))

    def _take_from_less_urgent(self, head: SequenceGroup) -> bool:
        """Let less urgent groups give up some of what ``head`` lacks; False if it lacks or they have nothing."""
        priority = self._order.priority(head)
        less_urgent = [group for group in self.running if self._order.priority(group) > priority]
        victims = less_urgent[-1:]
        if self._has_free_slot() and not self._adapters.have_room_for(head, self._adapters.of(self.running)):
            victims = self._users_of_one_adapter(less_urgent)
        elif self._has_free_slot():
            num_missing = self._num_missing(head)
            if num_missing <= 0:
                return False
            least = self._order.priority(victims[0]) if victims else priority + 1
            holding_kv = (group for group in self._holding_kv() if self._order.priority(group) >= least)
            if self.evictor.evict_one(holding_kv, num_missing) or self._evict_a_tree((priority, inf, 0)):
                return True
        for victim in victims:
            self._preempt_now(victim)
        return bool(victims)

    def _users_of_one_adapter(self, less_urgent: list[SequenceGroup]) -> list[SequenceGroup]:
        """All running groups with one adapter, all of them ``less_urgent``; [] if there is no such adapter."""
        kept = self._adapters.of(group for group in self.running if group not in less_urgent)
        last = next((g for g in reversed(less_urgent) if g.lora_int_id > 0 and g.lora_int_id not in kept), None)
        return [group for group in less_urgent if last is not None and group.lora_int_id == last.lora_int_id]

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
