# SPDX-License-Identifier: Apache-2.0
"""The order of trees where KV is tight: few of them go on at once, and what they hold is free again when they end.

The oldest trees go first, each up to its part of the rows: a quarter, or more if there are fewer than four trees or
few rows. If all went on at once, each would hold what the others lack. A tree of which nothing has run for long goes
first once.
"""

from typing import Generic

from sequence_hooks.admission.patience import STEPS_OF_PATIENCE_FOR_KV, Patience
from sequence_hooks.admission.share import Key, Share, T

MOST_AT_ONCE = 4
"""So many trees go on at once; fewer would leave others without a row, however small they are."""

LEAST_ROWS_EACH = 4
"""So many rows each of them has, even if fewer of them go on at once then; but one row is left to others."""


class OldestFirst(Generic[T]):
    """Which trees have waited for long, and the keys that follow from their ages."""

    def __init__(self) -> None:
        self.num_rows_each: int | None = None
        """So many rows a tree may have before younger ones have some; None while KV is ample."""

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

    def begin_step(self, num_rows: int, num_trees: int) -> bool:
        """Begin a step in which KV is tight; whether keys have changed."""
        before = self.num_rows_each, self.overdue
        least = max(1, min(LEAST_ROWS_EACH, num_rows - 1))
        self.num_rows_each = max(least, num_rows // max(1, min(num_trees, MOST_AT_ONCE)))
        first = next(iter(self._idle), None)
        if self._patience.is_over(first):
            self.overdue = first
        return before != (self.num_rows_each, self.overdue)

    def end(self) -> bool:
        """Note that KV is ample; whether keys have changed."""
        changed = self.num_rows_each is not None
        self.num_rows_each = self.overdue = None
        return changed

    def key_of(self, share: Share[T], *, has_kv: bool) -> Key:
        """What a tree competes with, if what is admitted next of it has KV or not."""
        assert self.num_rows_each is not None
        rank = -1 if share is self.overdue else share.num_running // self.num_rows_each
        return share.priority, rank, int(not has_kv), share.number
