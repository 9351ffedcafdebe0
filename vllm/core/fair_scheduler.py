# SPDX-License-Identifier: Apache-2.0
"""Slots are shared out among requests, however many sequences the tree of one has.

`sequence_hooks.tree.fairness` has the order. Trees' sequences with a block table wait in ``forked``, which is in that
order by itself; those without one, and new requests, wait in upstream's ``waiting``, which is sorted for each step.
What has no turn is held back from upstream's methods, which admit whatever there is room for.
"""

from collections import Counter, deque
from collections.abc import Iterable
from itertools import chain
from typing import Any

from sequence_hooks.tree.events import TreeEvent
from sequence_hooks.tree.fairness import Key, Patience
from vllm.core.hooked_sequence import V0Branch, branch_of
from vllm.core.priority_scheduler import PriorityScheduler
from vllm.core.scheduler import SchedulerOutputs, SchedulerPrefillOutputs, SchedulerSwappedInOutputs, SchedulingBudget
from vllm.sequence import SequenceGroup


class FairScheduler(PriorityScheduler):
    """`PriorityScheduler`, extended by an order among trees and requests that are equally urgent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patience = Patience()

    def note(self, branch: V0Branch, event: TreeEvent) -> None:
        """Forget a tree that has ended: a `sequence_hooks.tree.events.TreeObserver`."""
        if branch.phase == "finished" and branch.parent is None:
            self.forked.end(branch)

    def _schedule(self) -> SchedulerOutputs:
        if self.forked.has_trees:
            num_others = sum(branch_of(group) is None for group in chain(self.waiting, self.running, self.swapped))
            self.forked.divide(self.scheduler_config.max_num_seqs, num_others)
            self._note_running()
            self._make_room()
        return super()._schedule()

    def _schedule_once(self) -> SchedulerOutputs:
        if self.forked.has_trees:
            self._note_running()
            self.waiting = deque(sorted(self.waiting, key=self._key))
        return super()._schedule_once()

    def _must_wait(self, forked: SequenceGroup, in_use: set[int]) -> bool:
        if super()._must_wait(forked, in_use):
            return True
        first = self._adapters.first_with_room(self.waiting, in_use)
        return first is not None and self._key(first) < self._key(forked)

    def _schedule_swapped(
        self, budget: SchedulingBudget, curr_loras: set[int] | None, enable_chunking: bool = True
    ) -> SchedulerSwappedInOutputs:
        all_swapped, held = self.swapped, self._over_limit(self.swapped)
        if not held:
            return super()._schedule_swapped(budget, curr_loras, enable_chunking)
        self.swapped = deque(group for group in all_swapped if group not in held)
        scheduled = super()._schedule_swapped(budget, curr_loras, enable_chunking)
        left = held | set(self.swapped)
        self.swapped = deque(group for group in all_swapped if group in left)
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
            return self._order.priority(group), 0, group.first_seq.seq_id
        return self.forked.key_of(branch, group)

    def _note_running(self) -> None:
        """Let the queue of trees know who runs: upstream admits, preempts and frees in many places."""
        running, known = set(self.running), set(self.forked.running)
        for group in known - running:
            self.forked.stop(group)
        for group in self.running:
            branch = branch_of(group)
            if group not in known and branch is not None:
                self.forked.start(branch, group)

    def _make_room(self) -> None:
        """Preempt the newest children of the trees of which most run, for those that have waited and have no slot."""
        starving = [group for group in self.waiting if branch_of(group) is None]
        head = self._key(min(starving, key=self._key)) if starving else self.forked.starving()
        num_free = self.scheduler_config.max_num_seqs - len(self.running)
        num_missing = max(len(starving), head is not None) - num_free
        if starving and num_missing <= 0:
            num_missing = int(self._num_missing(starving[0]) > 0)
        if not self._patience.is_over(head if num_missing > 0 else None) or head is None:
            return
        for _ in range(num_missing):
            crowded = self.forked.most_crowded(head[0])
            victim = None if crowded is None else crowded.newest_child
            if victim is None:
                break
            self._preempt_now(victim)
            self._note_running()
