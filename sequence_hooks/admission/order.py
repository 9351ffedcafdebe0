# SPDX-License-Identifier: Apache-2.0
"""The order in which the sequences of trees are admitted; `sequence_hooks.admission` explains it."""

from collections.abc import Callable, Hashable, Iterator
from itertools import chain, count
from sys import maxsize
from typing import Any, Generic

from sequence_hooks.admission.heap import PriorityHeap
from sequence_hooks.admission.oldest import OldestFirst
from sequence_hooks.admission.share import Key, Share, T
from sequence_hooks.tree.branch import Branch

LEAST_CHILDREN_PER_TURN = 2
"""The least number of children that a tree may begin in its turn, even if there are as many requests as rows."""


class AdmissionOrder(Generic[T]):
    """The waiting and the running sequences of all trees. Everything but iteration takes O(log trees).

    A request that no hook has touched has no branch, and is a tree of its own.

    Args:
        priority: Returns the priority of a sequence, the same for all sequences of a tree; a lower number goes first.
    """

    def __init__(self, priority: Callable[[T], int]) -> None:
        self.num_arrived = 0
        """How many requests have arrived so far."""

        self.num_rows_each = 1
        """The share of each request, at least one row."""

        self._priority = priority
        self._shares: dict[Hashable, Share[T]] = {}
        """By the tree's root."""

        self._waits_in: dict[T, Share[T]] = {}
        self._runs_in: dict[T, Share[T]] = {}
        self._crowded: dict[Share[T], None] = {}
        """The trees of which more than one sequence runs."""

        self._oldest = OldestFirst[T]()
        self._heap = PriorityHeap(self._next_key)
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._waits_in)

    def __contains__(self, item: T) -> bool:
        return item in self._waits_in

    def __iter__(self) -> Iterator[T]:
        """All waiting sequences, tree by tree, in the order in which trees are to be admitted."""
        last = (0, 0, 0, 0)
        shares = sorted(self._shares.values(), key=lambda share: (share.key is None, share.key or last, share.place))
        return chain.from_iterable(share.waiting() for share in shares)

    @property
    def has_trees(self) -> bool:
        """Whether any tree is known."""
        return bool(self._shares)

    @property
    def running(self) -> Iterator[T]:
        """The sequences of trees that run."""
        return iter(self._runs_in)

    def divide(self, num_rows: int, num_others: int) -> None:
        """Divide the rows among trees and ``num_others`` requests."""
        self._give_each(max(1, num_rows // max(1, len(self._shares) + num_others)))

    def suspend_shares(self) -> None:
        """Let trees go first regardless of their shares, and without turns, until rows are divided again."""
        self._give_each(maxsize)

    def go_by_age(self, num_rows: int) -> None:
        """Begin a step in which KV is tight: the oldest trees go first."""
        if self._oldest.begin_step(num_rows, len(self._shares)):
            self._enter_all()

    def go_by_share(self) -> None:
        """Begin a step in which KV is ample: trees go by their shares."""
        if self._oldest.end():
            self._enter_all()

    def begin(self, branch: Branch[Any], item: T) -> None:
        """Add the tree of ``branch``, of which ``item`` is a sequence."""
        self._share_of(branch, item)

    def append(self, branch: Branch[Any] | None, item: T) -> None:
        """Queue ``item``, which belongs to ``branch``, after others of its tree but before preempted ones."""
        share = self._begin_again(branch, item)
        (share.own if _is_own(branch) else share.children)[item] = next(self._numbers)
        self._note_waiting(share, item)

    def appendleft(self, branch: Branch[Any] | None, item: T) -> None:
        """Queue ``item``, which has begun, before others of its tree; its tree goes before others with the same key."""
        share = self._begin_again(branch, item)
        queue = share.own if _is_own(branch) else share.children
        queue[item] = -next(self._numbers)
        queue.move_to_end(item, last=False)
        self._note_waiting(share, item)

    def put_back(self, branch: Branch[Any], item: T) -> None:
        """Queue ``item``, which was preempted, before other preempted ones of its tree, and after all the others."""
        share = self._begin_again(branch, item)
        queue = share.own_without_kv if _is_own(branch) else share.children_without_kv
        queue[item] = next(self._numbers)
        queue.move_to_end(item, last=False)
        self._note_waiting(share, item)

    def remove(self, item: T) -> None:
        """Remove ``item``, if it waits."""
        share = self._waits_in.pop(item, None)
        if share is not None:
            for queue in share.queues:
                queue.pop(item, None)
            self._enter(share)
            self._forget(share)

    def start(self, branch: Branch[Any], item: T) -> None:
        """Note that the sequence of ``branch``, which is ``item``, runs from now on."""
        self.remove(item)
        share = self._share_of(branch, item)
        is_child = share.running[item] = branch.parent is not None
        self._runs_in[item] = share
        if is_child:
            share.num_running_children += 1
            share.num_in_turn += 1
            if share.num_in_turn >= max(LEAST_CHILDREN_PER_TURN, self.num_rows_each):
                share.num_in_turn, share.turn = 0, self.num_arrived
        self._count(share)

    def stop(self, item: T) -> None:
        """Note that a sequence no longer runs, if it did."""
        share = self._runs_in.pop(item, None)
        if share is not None:
            share.num_running_children -= share.running.pop(item)
            self._count(share)
            self._forget(share)

    def end(self, root: Hashable) -> None:
        """Forget a tree whose request has ended, as soon as none of its sequences waits or runs."""
        share = self._shares.get(root)
        if share is not None:
            share.has_ended = True
            self._forget(share)

    def first(self) -> Share[T] | None:
        """The tree whose `Share.head` goes before the heads of all others; None if no sequence may be admitted."""
        return self._heap.first()

    def heads(self) -> Iterator[T]:
        """The sequence of each tree that may be admitted next, in the order of trees."""
        self._enter_all()
        return (head for share in self._heap.in_order() if (head := share.head) is not None)

    def goes_before(self, request: Key | None) -> bool:
        """Whether a tree goes before a new ``request``, or before none at all.

        Where no sequence of the tree runs, priority does not matter: the tree may hold KV that the request waits for.
        """
        first = self.first()
        if first is None or request is None:
            return first is not None
        key = self._key_of(first, _has_own_next(first))
        return key <= request if first.num_running else key[3] <= request[3]

    def key_of(self, branch: Branch[Any], item: T) -> Key:
        """The key of ``item``, which belongs to ``branch``."""
        return self._key_of(self._share_of(branch, item), branch.parent is None)

    def child_room(self, branch: Branch[Any]) -> int | None:
        """How many more children of a tree may be admitted; None if there is no limit."""
        share = self._shares.get(branch.root)
        limit = branch.tree.limits.max_running_children
        return None if share is None or limit is None else limit - share.num_running_children

    def idle_tree(self) -> Share[T] | None:
        """The first tree, if none of its sequences runs; where KV is tight, a tree of which none has run for long."""
        if self._oldest.num_rows_each is not None:
            return self._oldest.overdue
        first = self.first()
        return None if first is None or first.num_running else first

    def share_of(self, item: T) -> Share[T] | None:
        """The tree of a sequence that runs."""
        return self._runs_in.get(item)

    def tree_with_most_rows(self, priority: int, num_rows: int) -> Share[T] | None:
        """The tree with the most running sequences, if it has more than ``num_rows`` of them, and more than one.

        Args:
            priority: The tree must not be more urgent than this.
        """
        shares = (share for share in self._crowded if share.priority >= priority)
        most = max(shares, key=lambda share: share.num_running, default=None)
        return None if most is None or most.num_running <= num_rows else most

    def _give_each(self, num_rows: int) -> None:
        has_turns, self.num_rows_each = self._has_turns, num_rows
        if self._has_turns != has_turns:
            self._enter_all()

    def _enter_all(self) -> None:
        for share in self._shares.values():
            self._enter(share)

    def _enter(self, share: Share[T]) -> None:
        self._heap.push(share)
        self._oldest.note(share)

    @property
    def _has_turns(self) -> bool:
        return self.num_rows_each < maxsize

    def _begin_again(self, branch: Branch[Any] | None, item: T) -> Share[T]:
        """The share of a sequence that is queued, and if it ran until now, has to begin again."""
        share = self._share_of(branch, item)
        if item in share.running:
            share.num_in_turn -= share.running[item]
            self.stop(item)
        return share

    def _note_waiting(self, share: Share[T], item: T) -> None:
        self._waits_in[item] = share
        self._enter(share)

    def _share_of(self, branch: Branch[Any] | None, item: T) -> Share[T]:
        root = item if branch is None else branch.root
        share = self._shares.get(root)
        if share is None:
            limit = None if branch is None else branch.tree.limits.max_running_children
            share = self._shares[root] = Share(root, limit, self._priority(item), next(self._numbers))
            share.has_ended = branch is None
        return share

    def _forget(self, share: Share[T]) -> None:
        if share.has_ended and not share.running and not any(share.queues):
            self._shares.pop(share.root, None)
            # Stale entries stay in the heap for a while, and must not keep the tree alive.
            share.root = None

    def _count(self, share: Share[T]) -> None:
        share.num_running = len(share.running)
        if share.num_running > 1:
            self._crowded[share] = None
        else:
            self._crowded.pop(share, None)
        self._enter(share)

    def _next_key(self, share: Share[T]) -> Key:
        queue = share.next_queue
        has_kv = queue is share.own or queue is share.children
        if self._oldest.num_rows_each is not None:
            return self._oldest.key_of(share, has_kv=has_kv)
        priority, num_running, _, turn = self._key_of(share, _has_own_next(share))
        return priority, num_running, int(not has_kv), turn

    def _key_of(self, share: Share[T], is_own: bool) -> Key:
        num_running = share.num_running if share.num_running >= self.num_rows_each else 0
        # A tree's own sequence works towards the end of the tree, so it needs no turn.
        turn = share.turn if self._has_turns and not is_own else 0
        return share.priority, num_running, 0, turn


def _has_own_next(share: Share[T]) -> bool:
    """Whether the tree's own sequence is the next one to be admitted."""
    queue = share.next_queue
    return queue is share.own or queue is share.own_without_kv


def _is_own(branch: Branch[Any] | None) -> bool:
    """Whether it is a root; None, for a request without a branch, counts as one."""
    return branch is None or branch.parent is None
