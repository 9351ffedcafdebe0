# SPDX-License-Identifier: Apache-2.0
"""Slots are shared out among requests, however many sequences the tree of one has.

`sequence_hooks.admission` has the order. Trees' sequences with a block table wait in ``forked``, which is in that
order by itself; those without one, and new requests, wait in upstream's ``waiting``, which is sorted for each step.
What has no turn is held back from upstream's methods, which admit whatever there is room for.
"""

from collections import Counter, deque
from collections.abc import Iterable
from itertools import chain
from sys import maxsize
from typing import Any

from sequence_hooks.admission.policy import AdmissionPolicy
from sequence_hooks.admission.share import Key
from sequence_hooks.tree.events import TreeEvent
from vllm.core.hooked_sequence import V0Branch, branch_of
from vllm.core.priority_scheduler import PriorityScheduler
from vllm.core.scheduler import SchedulerOutputs, SchedulerPrefillOutputs, SchedulerSwappedInOutputs, SchedulingBudget
from vllm.sequence import SequenceGroup


class FairScheduler(PriorityScheduler):
    """`PriorityScheduler`, extended by an order among trees and requests that are equally urgent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._policy = AdmissionPolicy(self.forked, goes_by_age=False)
        self._num_given_up = 0
        """How often a group was preempted or KV was evicted, so far."""

    def note(self, branch: V0Branch, event: TreeEvent) -> None:
        """Forget what has ended: a `sequence_hooks.tree.events.TreeObserver`."""
        if branch.phase == "finished":
            self.forked.stop(branch.sequence.group)
            if branch.parent is None:
                self.forked.end(branch)

    def _schedule(self) -> SchedulerOutputs:
        if self.forked.has_trees:
            self._note_running()
            self._make_room()
        return super()._schedule()

    def _schedule_once(self) -> SchedulerOutputs:
        if self.forked.has_trees:
            self._note_running()
            self.waiting = deque(sorted(self.waiting, key=self._key))
            self._put_crowded_last()
        return super()._schedule_once()

    def _must_wait(self, forked: SequenceGroup, in_use: set[int]) -> bool:
        if super()._must_wait(forked, in_use):
            return True
        first = self._adapters.first_with_room(self.waiting, in_use)
        return first is not None and self._key(first) < self._key(forked)

    def _schedule_swapped(
        self, budget: SchedulingBudget, curr_loras: set[int] | None, enable_chunking: bool = True
    ) -> SchedulerSwappedInOutputs:
        if not self.forked.has_trees:
            return super()._schedule_swapped(budget, curr_loras, enable_chunking)
        all_swapped, held = self.swapped, self._over_limit(self.swapped)
        self.swapped = deque(group for group in all_swapped if group not in held)
        scheduled = super()._schedule_swapped(budget, curr_loras, enable_chunking)
        left = held | set(self.swapped)
        self.swapped = deque(group for group in all_swapped if group in left)
        # They count before others of their trees are admitted in this step.
        for each in chain(scheduled.decode_seq_groups, scheduled.prefill_seq_groups):
            self._note_start(each.seq_group)
        return scheduled

    def _schedule_prefills(
        self, budget: SchedulingBudget, curr_loras: set[int] | None, *args: Any, **kwargs: Any
    ) -> SchedulerPrefillOutputs:
        held = self._without_turn(curr_loras or set())
        if not held:
            return super()._schedule_prefills(budget, curr_loras, *args, **kwargs)
        all_waiting = self.waiting
        self.waiting = deque(group for group in all_waiting if group not in held)
        scheduled = super()._schedule_prefills(budget, curr_loras, *args, **kwargs)
        left = held | set(self.waiting)
        self.waiting = deque(group for group in all_waiting if group in left)
        return scheduled

    def _without_turn(self, in_use: set[int]) -> set[SequenceGroup]:
        """The groups of ``waiting`` that may not be admitted before what waits in ``forked``, or at all."""
        if not self.forked.has_trees:
            return set()
        held = self._over_limit(self.waiting)
        head = self._adapters.first_with_room(self.forked.heads(), in_use)
        if head is not None:
            key = self._key(head)
            held |= {group for group in self.waiting if self._key(group) >= key}
        return held

    def _over_limit(self, groups: Iterable[SequenceGroup]) -> set[SequenceGroup]:
        """Those of the ``groups`` that would be more children of their trees than may be admitted."""
        held: set[SequenceGroup] = set()
        admitted: Counter[object] = Counter()
        for group in groups if self.forked.has_trees else ():
            branch = branch_of(group)
            if branch is None or branch.parent is None:
                continue
            room = self.forked.child_room(branch)
            if room is not None and admitted[branch.root] >= room:
                held.add(group)
            admitted[branch.root] += 1
        return held

    def _key(self, group: SequenceGroup) -> Key:
        branch = branch_of(group)
        if branch is None:
            shortage, number = self._policy.shortage, group.first_seq.seq_id
            waits = maxsize if shortage.is_lasting and not shortage.is_too_long else 0
            return self._order.priority(group), waits, 0, -1 if shortage.is_too_long else number
        return self.forked.key_of(branch, group)

    def _note_running(self) -> None:
        """Let the queue of trees know who runs: upstream admits, preempts and frees in many places."""
        running, known = set(self.running), set(self.forked.running)
        for group in known - running:
            self.forked.stop(group)
        for group in self.running:
            if group not in known:
                self._note_start(group)

    def _note_start(self, group: SequenceGroup) -> None:
        branch = branch_of(group)
        if branch is not None:
            self.forked.start(branch, group)

    def _put_crowded_last(self) -> None:
        """Let upstream, which preempts the last of ``running``, take a child of the tree that has most of the slots."""
        crowded = self.forked.most_crowded(0, self.forked.num_rows_each)
        if crowded is not None:
            self.running = deque(sorted(self.running, key=lambda group: bool(crowded.running.get(group))))

    def _make_room(self) -> None:
        """Take a slot, or KV, from children of the trees that have most, for those that have waited and have none."""
        new = [group for group in self.waiting if branch_of(group) is None]
        first = min(new, key=lambda group: (self._order.priority(group), group.first_seq.seq_id), default=None)
        self._divide(first)
        priority = 0 if first is None else self._order.priority(first)
        victims = self._policy.victims(
            first, priority, len(new), self.scheduler_config.max_num_seqs - len(self.running)
        )
        if first is not None and self._policy.shortage.is_too_long and self._take_kv(first):
            return
        for victim in victims:
            self._preempt_now(victim)
            self._note_running()

    def _divide(self, first: SequenceGroup | None) -> None:
        num_given_up = self.num_cumulative_preemption + self.evictor.evictions.total()
        if num_given_up > self._num_given_up or (first is not None and self._num_missing(first) > 0):
            self._num_given_up = num_given_up
            self._policy.shortage.note()
        num_others = sum(branch_of(group) is None for group in chain(self.waiting, self.running, self.swapped))
        self._policy.begin_step(first, self.scheduler_config.max_num_seqs, num_others)

    def _take_kv(self, first: SequenceGroup) -> bool:
        """Let one BLOCKED group give up KV for the ``first`` new request; whether one did."""
        num_missing = self._num_missing(first)
        may_evict = num_missing > 0 and self._has_free_slot() and not self.evictor.preserves
        return may_evict and self.evictor.evict_one(self._holding_kv(), num_missing)
