# SPDX-License-Identifier: Apache-2.0
"""Upstream's statistics of a scheduler, in which a tree counts as one request, however many children it has."""

from collections.abc import Collection, Iterable, Mapping

from sequence_hooks.v1.core.sequence import V1Branch
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import Request


def count_requests(
    stats: SchedulerStats,
    branches: Mapping[str, V1Branch],
    running: Iterable[Request],
    waiting: Iterable[Request],
    deferred: Collection[Request],
) -> None:
    """Set the numbers of requests that are running, waiting, and deferred.

    A request counts as the first of these that applies to any of its sequences; as none of them if all of its
    sequences are BLOCKED, see ``vllm:num_requests_blocked``.

    Args:
        branches: Those of all sequences that are in a tree, by request id.
        deferred: Those of ``waiting`` that upstream has set aside for now.
    """

    def request_of(sequence: Request) -> str:
        branch = branches.get(sequence.request_id)
        return sequence.request_id if branch is None else branch.root.request_id

    waiting = list(waiting)
    is_running = set(map(request_of, running))
    is_waiting = {request_of(each) for each in waiting if each not in deferred} - is_running
    is_deferred = {request_of(each) for each in waiting if each in deferred} - is_running - is_waiting
    stats.num_running_reqs = len(is_running)
    stats.num_waiting_reqs, stats.num_skipped_waiting_reqs = len(is_waiting), len(is_deferred)
