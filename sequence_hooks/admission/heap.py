# SPDX-License-Identifier: Apache-2.0
"""Which of the trees that wait goes first."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic

from sequence_hooks.admission.share import Entry, Key, Share, T

LEAST_ENTRIES = 16
"""In a heap of this size, dropping stale entries gains nothing."""


class PriorityHeap(Generic[T]):
    """The trees that have a sequence to admit, ordered by key and then by place.

    Args:
        key_of: Returns the current key of such a tree.
    """

    def __init__(self, key_of: Callable[[Share[T]], Key]) -> None:
        self._key_of = key_of
        self._heap: list[Entry[T]] = []
        """May hold several entries of a share, of which only the current one counts."""

        self._most_entries = LEAST_ENTRIES
        self._numbers = count()

    def push(self, share: Share[T]) -> None:
        """Enter a tree with its current key, or withdraw it if it has no sequence to admit."""
        queue = share.next_queue
        if queue is None:
            share.entry = None
            return
        key, place = self._key_of(share), next(iter(queue.values()))
        if share.entry is None or (key, place) != share.entry[:2]:
            share.entry = key, place, next(self._numbers), share
            heappush(self._heap, share.entry)
            if len(self._heap) > self._most_entries:
                self._forget_past()

    def first(self) -> Share[T] | None:
        """The tree that goes first; None if no tree has a sequence to admit."""
        while self._heap:
            key, _, _, share = entry = self._heap[0]
            if not _counts(entry):
                heappop(self._heap)
            elif key == self._key_of(share):
                return share
            else:
                # The number of requests has changed since.
                self.push(share)
        return None

    def in_order(self) -> list[Share[T]]:
        """All trees that have a sequence to admit, in order."""
        return [entry[3] for entry in sorted(filter(_counts, self._heap))]

    def _forget_past(self) -> None:
        """Drop the entries that no longer count; the next time is when the heap has doubled."""
        self._heap = [entry for entry in self._heap if _counts(entry)]
        heapify(self._heap)
        self._most_entries = max(2 * len(self._heap), LEAST_ENTRIES)


def _counts(entry: Entry[T]) -> bool:
    return entry[3].entry is entry
