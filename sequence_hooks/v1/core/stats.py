# SPDX-License-Identifier: Apache-2.0
"""Upstream's statistics of a scheduler, in which a tree counts as one request, however many children it has."""

from collections.abc import Iterable, Mapping
from typing import Literal

from vllm.v1.metrics.stats import SchedulerStats

Queue = Literal["running", "waiting", "deferred"]


def count_requests(stats: SchedulerStats, lengths: Mapping[Queue, int], of_trees: Iterable[tuple[str, Queue]]) -> None:
    """Set the numbers of requests that are running, waiting, and deferred.

    A request counts as the first of these that applies to any of its sequences; as none of them if all of its
    sequences are BLOCKED, see ``vllm:num_requests_blocked``. Requests without a tree, of which thousands may wait, are
    not looked at.

    Args:
        lengths: How many sequences, of trees or not, are in each queue.
        of_trees: For each queued sequence of a tree, and each piece of glue, its request's id and its queue.
    """
    left, requests = dict(lengths), {queue: set[str]() for queue in lengths}
    for request_id, queue in of_trees:
        left[queue] -= 1
        requests[queue].add(request_id)
    running, waiting = requests["running"], requests["waiting"]
    stats.num_running_reqs = left["running"] + len(running)
    stats.num_waiting_reqs = left["waiting"] + len(waiting - running)
    stats.num_skipped_waiting_reqs = left["deferred"] + len(requests["deferred"] - running - waiting)
