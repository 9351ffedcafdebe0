# SPDX-License-Identifier: Apache-2.0
"""The order of trees where KV is tight: few of them progress at once, and a tree that ends frees the KV that it holds.

The oldest trees go first, each up to its part of the rows: a quarter, or more if there are fewer than four trees or
few rows. If all trees progressed at once, each would hold KV that the others lack. A tree that has had no running
sequence for long goes first once.
"""

from typing import Generic

from sequence_hooks.admission.patience import STEPS_OF_PATIENCE_FOR_KV, Patience
from sequence_hooks.admission.share import Key, Share, T

MOST_AT_ONCE = 4
"""How many trees progress at once. With fewer, even small trees would be left without a row."""

LEAST_ROWS_EACH = 4
"""The least number of rows that each of them has, even if fewer of them then progress at once. One row is left to other
trees."""


class OldestFirst(Generic[T]):
    """Which trees have waited for long, and the keys that follow from their ages."""

    def __init__(self) -> None:
        self.num_rows_each: int | None = None
        """How many rows a tree may have before younger trees get any; None while KV is ample."""

        self.overdue: Share[T] | None = None
        """The tree that goes first because none of its sequences has run for long; None if there is none."""

        self._idle: dict[Share[T], None] = {}
        """The trees that have a sequence to admit and none that runs, in the order in which they became idle."""

        self._patience = Patience(STEPS_OF_PATIENCE_FOR_KV)

    def note(self, share: Share[T]) -> None:
        """Note whether a tree is idle now: it has a sequence to admit, and none that runs."""
        if share.entry is not None and not share.num_running:
            self._idle.setdefault(share)
            return
        self._idle.pop(share, None)
        if share is self.overdue:
            self.overdue = None

    def begin_step(self, num_rows: int, num_trees: int) -> bool:
        """Begin a step in which KV is tight; return whether keys have changed."""
        before = self.num_rows_each, self.overdue
        least = max(1, min(LEAST_ROWS_EACH, num_rows - 1))
        self.num_rows_each = max(least, num_rows // max(1, min(num_trees, MOST_AT_ONCE)))
        first = next(iter(self._idle), None)
        if self._patience.is_over(first):
            self.overdue = first
        return before != (self.num_rows_each, self.overdue)

    def end(self) -> bool:
        """Note that KV is ample; return whether keys have changed."""
        changed = self.num_rows_each is not None
        self.num_rows_each = self.overdue = None
        return changed

    def key_of(self, share: Share[T], *, has_kv: bool) -> Key:
        """The key of a tree; ``has_kv`` says whether the sequence that it admits next has KV."""
        assert self.num_rows_each is not None
        rank = -1 if share is self.overdue else share.num_running // self.num_rows_each
        return share.priority, rank, int(not has_kv), share.number
