# SPDX-License-Identifier: Apache-2.0
"""The order of trees where KV is tight: few of them go on at once, and what they hold is free again when they end.

The oldest trees go first, each up to its part of the slots: a quarter, or more if there are fewer than four trees or
few slots. If all went on at once, each would hold what the others lack. A tree of which nothing has run for long goes
first once.
"""

from typing import Generic

from sequence_hooks.tree.share import STEPS_OF_PATIENCE_FOR_KV, Key, Patience, Share, T

MOST_AT_ONCE = 4
"""So many trees go on at once; fewer would leave others without a slot, however small they are."""

LEAST_SLOTS_EACH = 4
"""So many slots each of them has, even if fewer of them go on at once then; but one slot is left to others."""


class OrderOfAge(Generic[T]):
    """Which trees have waited for long, and the keys that follow from their ages."""

    def __init__(self) -> None:
        self.num_slots_each: int | None = None
        """So many slots a tree may have before younger ones have some; None while KV is ample."""

        self.overdue: Share[T] | None = None
        """The tree that goes first."""

        self._idle: dict[Share[T], None] = {}
        """Those of which something may be admitted and nothing runs, in the order in which that began."""

        self._patience = Patience(STEPS_OF_PATIENCE_FOR_KV)

    def note(self, share: Share[T]) -> None:
        """Note what waits and runs of a tree now."""
        if share.entry is not None and not share.num_running:
            self._idle.setdefault(share)
            return
        self._idle.pop(share, None)
        if share is self.overdue:
            self.overdue = None

    def begin_step(self, num_slots: int, num_trees: int) -> bool:
        """Begin a step in which KV is tight; whether keys have changed."""
        before = self.num_slots_each, self.overdue
        least = max(1, min(LEAST_SLOTS_EACH, num_slots - 1))
        self.num_slots_each = max(least, num_slots // max(1, min(num_trees, MOST_AT_ONCE)))
        first = next(iter(self._idle), None)
        if self._patience.is_over(first):
            self.overdue = first
        return before != (self.num_slots_each, self.overdue)

    def end(self) -> bool:
        """Note that KV is ample; whether keys have changed."""
        changed = self.num_slots_each is not None
        self.num_slots_each = self.overdue = None
        return changed

    def key_of(self, share: Share[T], *, has_kv: bool) -> Key:
        """What a tree competes with, if what is admitted next of it has KV or not."""
        assert self.num_slots_each is not None
        rank = -1 if share is self.overdue else share.num_running // self.num_slots_each
        return share.priority, rank, int(not has_kv), share.number
