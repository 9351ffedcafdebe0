# SPDX-License-Identifier: Apache-2.0
"""The rows of an engine's batch that one tree has, and the sequences that it has waiting for more."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from itertools import chain
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

Line = OrderedDict[T, int]
"""Waiting sequences in order, each with its place among the waiting sequences of all trees: a lower one goes first."""

Key = tuple[int, int, int, int]
"""The key of a tree or of a new request; `sequence_hooks.admission` says what it consists of."""


class Share(Generic[T]):
    """The waiting and the running sequences of one tree. Only its `AdmissionOrder` writes them."""

    def __init__(self, root: Hashable, limit: int | None, priority: int, number: int) -> None:
        self.root = root
        self.limit = limit
        """How many of its children may be admitted at once; None for no limit."""

        self.priority = priority
        self.number = number
        """Trees are numbered in the order in which they began."""

        self.own: Line[T] = OrderedDict()
        """Waiting, and belonging to the root."""

        self.children: Line[T] = OrderedDict()
        """Waiting, and belonging to other sequences of the tree."""

        self.own_without_kv: Line[T] = OrderedDict()
        self.children_without_kv: Line[T] = OrderedDict()
        """The same for preempted sequences, which need room for their whole contexts: others would wait behind them."""

        self.running: dict[T, bool] = {}
        """The running sequences in the order of their admission, and whether each is a child."""

        self.has_ended = False
        self.num_running = 0
        self.num_running_children = 0
        self.turn = 0
        self.num_in_turn = 0
        self.entry: Entry[T] | None = None
        """Its current entry in the heap; None if it has no sequence to admit."""

    @property
    def key(self) -> Key | None:
        """The key of its entry."""
        return None if self.entry is None else self.entry[0]

    @property
    def place(self) -> int:
        """The place of the sequence that is admitted next; 0 if none may be."""
        return 0 if self.entry is None else self.entry[1]

    @property
    def has_child_room(self) -> bool:
        """Whether another child may be admitted."""
        return self.limit is None or self.num_running_children < self.limit

    @property
    def head(self) -> T | None:
        """The sequence that is admitted next; None if none may be."""
        queue = self.next_queue
        return None if queue is None else next(iter(queue))

    @property
    def next_queue(self) -> Line[T] | None:
        """The queue whose first sequence is admitted next; None if none may be."""
        children, children_without_kv = (
            (self.children, self.children_without_kv) if self.has_child_room else (_NONE, _NONE)
        )
        return self.own or children or self.own_without_kv or children_without_kv or None

    @property
    def queues(self) -> tuple[Line[T], ...]:
        """All queues, in the order in which they are served."""
        return self.own, self.children, self.own_without_kv, self.children_without_kv

    @property
    def newest_child(self) -> T | None:
        """The running child that was admitted last."""
        return next((item for item, is_child in reversed(self.running.items()) if is_child), None)

    def waiting(self) -> Iterator[T]:
        """All waiting sequences, in order."""
        return chain(*self.queues)


_NONE: Line[Any] = OrderedDict()

Entry = tuple[Key, int, int, Share[T]]
"""A key, the place of the sequence that is admitted next, a number that no other entry has, and the tree."""
