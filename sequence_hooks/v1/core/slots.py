# SPDX-License-Identifier: Apache-2.0
"""Who is preempted for others: the newest child of the tree that has most of the slots beyond its share."""

from collections.abc import Iterator, Sequence

from sequence_hooks.tree.fairness import TreeQueue
from sequence_hooks.tree.share import STEPS_OF_PATIENCE, Patience, Shortage
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.request import Request


class SlotSharing:
    """Chooses whom to preempt, and preempts nobody itself."""

    def __init__(self, trees: TreeQueue[Request]) -> None:
        self.shortage = Shortage()
        self._trees = trees
        self._patience = Patience(STEPS_OF_PATIENCE)

    def begin_step(self, new: Request | None, num_slots: int, num_others: int, pool: BlockPool) -> None:
        """Divide the slots for a step.

        Args:
            new: The new request that would be admitted next; None if none would be.
            num_others: How many requests have no tree.
            pool: The blocks of KV.
        """
        self.shortage.begin_step(new)
        if self.shortage.is_lasting or 2 * pool.get_num_free_blocks() < pool.num_gpu_blocks:
            self._trees.go_by_age(num_slots)
        else:
            self._trees.go_by_share()
        if self.shortage.is_lasting:
            self._trees.suspend_shares()
        else:
            self._trees.divide(num_slots, num_others)

    def victims(self, new: Request | None, priority: int, num_new: int, num_free: int) -> Iterator[Request]:
        """The children to preempt before a step, each chosen when those before it have been preempted.

        Args:
            new: The new request that would be admitted next; None if none would be.
            priority: That of ``new``.
            num_new: How many new requests wait.
            num_free: How many slots are free.
        """
        starving = None if new is not None else self._trees.starving()
        if starving is not None:
            priority, num_new = starving.priority, 1
        num_missing = num_new - num_free
        if not self._patience.is_over((new or starving) if num_missing > 0 else None):
            num_missing = 0
        beyond = self._trees.num_slots_each
        if self.shortage.is_too_long:
            num_missing, beyond = 1, 1
        for _ in range(num_missing):
            crowded = self._trees.most_crowded(priority, beyond)
            victim = None if crowded is None else crowded.newest_child
            if victim is None:
                return
            yield victim

    def better_victim(self, running: Sequence[Request], request: Request) -> Request | None:
        """Who is to be preempted instead of the last of those ``running``, for want of KV for ``request``.

        Only what comes after ``request`` is not scheduled yet in this step. None if the last one is as good.
        """
        last = self._trees.share_of(running[-1])
        crowded = self._trees.most_crowded(0, 1 if last is None else last.num_running)
        left = running[running.index(request) :] if crowded is not None else ()
        return next((each for each in reversed(left) if self._trees.share_of(each) is crowded), None)
