# SPDX-License-Identifier: Apache-2.0
"""Which sequence makes room for others: the newest child of the tree that has the most rows beyond its share."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Generic

from sequence_hooks.admission.order import AdmissionOrder
from sequence_hooks.admission.patience import STEPS_OF_PATIENCE, Patience, Shortage
from sequence_hooks.admission.share import T


class AdmissionPolicy(Generic[T]):
    """Chooses the sequences to preempt; the engine preempts them.

    Args:
        goes_by_age: Whether the oldest trees go first where KV is short. V0 needs no such order, because old trees take
            the KV of young ones there.
    """

    def __init__(self, order: AdmissionOrder[T], goes_by_age: bool) -> None:
        self.shortage = Shortage()
        self._order, self._goes_by_age = order, goes_by_age
        self._patience = Patience(STEPS_OF_PATIENCE)

    def begin_step(self, new: Hashable, num_rows: int, num_others: int, is_tight: bool = False) -> None:
        """Divide the rows for a step.

        Args:
            new: The new request that would be admitted next; None if none would be.
            num_others: How many requests have no tree.
            is_tight: Whether little KV is free. A recent shortage has the same effect.
        """
        self.shortage.begin_step(new)
        if self._goes_by_age and (self.shortage.is_recent or is_tight):
            self._order.go_by_age(num_rows)
        else:
            self._order.go_by_share()
        if self.shortage.is_recent:
            self._order.suspend_shares()
        else:
            self._order.divide(num_rows, num_others)

    def victims(self, new: Hashable, priority: int, num_new: int, num_free: int) -> Iterator[T]:
        """The children to preempt before a step, each chosen once the ones before it have been preempted.

        To be called once in each step, before any sequence is preempted.

        Args:
            new: The new request that would be admitted next; None if none would be.
            priority: The priority of ``new``.
            num_new: How many new requests wait.
            num_free: How many rows are free.
        """
        starving = None if new is not None else self._order.idle_tree()
        if starving is not None:
            priority, num_new = starving.priority, 1
        num_missing = num_new - num_free
        if not self._patience.is_over((new or starving) if num_missing > 0 else None):
            num_missing = 0
        if self.shortage.is_urgent:
            return self._crowded(1, priority, 1)
        return self._crowded(num_missing, priority, self._order.num_rows_each)

    def _crowded(self, num: int, priority: int, beyond: int) -> Iterator[T]:
        for _ in range(num):
            crowded = self._order.tree_with_most_rows(priority, beyond)
            victim = None if crowded is None else crowded.newest_child
            if victim is None:
                return
            yield victim

    def better_victim(self, running: Sequence[T], item: T) -> T | None:
        """The sequence to preempt instead of the last one ``running``, because there is no KV for ``item``.

        Only ``item`` and those after it are not scheduled yet in this step. None if the last one is as good.
        """
        last = self._order.share_of(running[-1])
        crowded = self._order.tree_with_most_rows(0, 1 if last is None else last.num_running)
        left = running[running.index(item) :] if crowded is not None else ()
        return next((each for each in reversed(left) if self._order.share_of(each) is crowded), None)
