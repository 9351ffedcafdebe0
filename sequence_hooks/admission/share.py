# SPDX-License-Identifier: Apache-2.0
"""What one tree has of the rows of an engine's batch."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from itertools import chain
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

Line = OrderedDict[T, int]
"""What waits, in order, with the place of each among what waits of all trees: a lower one goes first."""

Key = tuple[int, int, int, int]
"""The key of a tree or of a new request; `sequence_hooks.admission` says what it consists of."""


class Share(Generic[T]):
    """What one tree has waiting and running. Only its `AdmissionOrder` writes it."""

    def __init__(self, root: Hashable, limit: int | None, priority: int, number: int) -> None:
        self.root = root
        self.limit = limit
        """How many of its children may be admitted at once; None for no limit."""

        self.priority = priority
        self.number = number
        """A lower one has begun before."""

        self.own: Line[T] = OrderedDict()
        """What waits of the root's sequence."""

        self.children: Line[T] = OrderedDict()
        """What waits of all other sequences."""

        self.own_without_kv: Line[T] = OrderedDict()
        self.children_without_kv: Line[T] = OrderedDict()
        """The same, of those that were preempted: they need more room than others, which would wait behind them."""

        self.running: dict[T, bool] = {}
        """The sequences that run, the one admitted last at the end, and whether each is a child."""

        self.has_ended = False
        self.num_running = 0
        self.num_running_children = 0
        self.turn = 0
        self.num_in_turn = 0
        self.entry: Entry[T] | None = None
        """What it competes with; None if nothing waits that may be admitted."""

    @property
    def key(self) -> Key | None:
        """The key of its entry."""
        return None if self.entry is None else self.entry[0]

    @property
    def place(self) -> int:
        """That of what is admitted next; 0 if nothing may be."""
        return 0 if self.entry is None else self.entry[1]

    @property
    def has_child_room(self) -> bool:
        """Whether another child may be admitted."""
        return self.limit is None or self.num_running_children < self.limit

    @property
    def head(self) -> T | None:
        """What is admitted next; None if nothing may be."""
        queue = self.next_queue
        return None if queue is None else next(iter(queue))

    @property
    def next_queue(self) -> Line[T] | None:
        """The queue from which something is admitted next."""
        children, children_without_kv = (
            (self.children, self.children_without_kv) if self.has_child_room else (_NONE, _NONE)
        )
        return self.own or children or self.own_without_kv or children_without_kv or None

    @property
    def queues(self) -> tuple[Line[T], ...]:
        """All that waits, in order."""
        return self.own, self.children, self.own_without_kv, self.children_without_kv

    @property
    def newest_child(self) -> T | None:
        """The child that was admitted last, of those that run."""
        return next((item for item, is_child in reversed(self.running.items()) if is_child), None)

    def waiting(self) -> Iterator[T]:
        """All that waits, in order."""
        return chain(*self.queues)


_NONE: Line[Any] = OrderedDict()

Entry = tuple[Key, int, int, Share[T]]
"""A key, the place of what is admitted next, a number that no other entry has, and the tree."""
