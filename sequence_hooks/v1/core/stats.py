# SPDX-License-Identifier: Apache-2.0
"""Statistics: upstream's, in which a tree counts as one request, and those of hooks that only the core knows."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Literal

from sequence_hooks.v1.core.eviction import KVEvictor
from sequence_hooks.v1.core.glue import Glue
from sequence_hooks.v1.core.sequence import V1Branch
from sequence_hooks.v1.releases.installed import ReleaseScheduler
from sequence_hooks.v1.wire import CoreHookStats
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import RequestStatus

Queue = Literal["running", "waiting", "deferred"]

_INTERVAL = 1.0
"""Seconds between two counts of the blocks that BLOCKED sequences hold: each block has to be looked at."""


class CoreStats:
    """Counts what BLOCKED sequences hold, and what was evicted. The front end is told only if something has changed.

    Args:
        blocked: The BLOCKED requests, by id.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        blocked: Collection[str],
        manager: KVCacheManager,
        evictor: KVEvictor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blocked = blocked
        self._manager = manager
        self._evictor = evictor
        self._clock = clock
        self._counted = float("-inf")
        self._counted_for: tuple[frozenset[str], int] = frozenset(), 0
        self._latest = CoreHookStats(0, 0.0, 0)
        """The latest statistics, with all evictions so far, and all tokens that were taken back."""

        self.num_taken_back = 0
        """Drafts that were accepted, and not appended."""

    def changed(self, num_running: int) -> CoreHookStats | None:
        """The statistics, with what has happened since the last ones; None if nothing has changed.

        Args:
            num_running: How many requests run. If none does, no newer statistics may follow until a caller acts.
        """
        num_discarded = self._evictor.evictions["discard"]
        held = self._share(num_discarded, num_running)
        latest = CoreHookStats(len(self._blocked), held, num_discarded, self.num_taken_back)
        before, self._latest = self._latest, latest
        if before == latest:
            return None
        since = num_discarded - before.num_discarded, self.num_taken_back - before.num_taken_back
        return CoreHookStats(len(self._blocked), held, *since)

    def _share(self, num_discarded: int, num_running: int) -> float:
        """The share of the KV cache that BLOCKED sequences hold; a shared block counts once."""
        if not self._blocked:
            return 0.0
        now = self._clock()
        if now - self._counted < _INTERVAL and num_running:
            return self._latest.held
        counted_for = frozenset(self._blocked), num_discarded
        if counted_for == self._counted_for:
            return self._latest.held
        self._counted, self._counted_for = now, counted_for
        managers = self._manager.coordinator.single_type_managers
        tables = (each.req_to_blocks.get(name, ()) for each in managers for name in self._blocked)
        held = {block.block_id for table in tables for block in table}
        return len(held) / (self._manager.block_pool.num_gpu_blocks - 1)


def count_requests(
    stats: SchedulerStats,
    scheduler: ReleaseScheduler,
    branches: Mapping[str, V1Branch],
    blocked: Collection[str],
    glue: Collection[Glue],
) -> None:
    """Set the numbers of requests that are running, waiting, and deferred.

    A request counts as the first of these that applies to any of its sequences; as none of them if all of its
    sequences are BLOCKED, see ``vllm:num_requests_blocked``. Requests without a tree, of which thousands may wait, are
    not looked at.

    Args:
        branches: The branches of the unfinished sequences of trees, by request id.
    """
    num_deferred = len(scheduler.deferred)
    num_waiting = len(scheduler.waiting) + len(scheduler.waiting_with_kv) - num_deferred
    left: dict[Queue, int] = {"running": len(scheduler.running), "waiting": num_waiting, "deferred": num_deferred}
    requests = {queue: set[str]() for queue in left}
    for request_id, queue in _queued(scheduler, branches, blocked, glue):
        left[queue] -= 1
        requests[queue].add(request_id)
    running, waiting = requests["running"], requests["waiting"]
    stats.num_running_reqs = left["running"] + len(running)
    stats.num_waiting_reqs = left["waiting"] + len(waiting - running)
    stats.num_skipped_waiting_reqs = left["deferred"] + len(requests["deferred"] - running - waiting)


def _queued(
    scheduler: ReleaseScheduler, branches: Mapping[str, V1Branch], blocked: Collection[str], glue: Iterable[Glue]
) -> Iterator[tuple[str, Queue]]:
    """For each queued sequence of a tree, and each piece of glue, its request's id and its queue."""
    of_trees = ((branch, branch.sequence.request) for branch in branches.values())
    of_glue = ((branches[each.owner.request_id], each.request) for each in glue)
    for branch, request in chain(of_trees, of_glue):
        if request.status == RequestStatus.RUNNING:
            yield branch.root.request_id, "running"
        elif request.request_id not in blocked and not request.is_finished():
            yield branch.root.request_id, "deferred" if request in scheduler.deferred else "waiting"
