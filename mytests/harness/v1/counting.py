# SPDX-License-Identifier: Apache-2.0
"""How many requests run and wait, counted by looking at each sequence in each queue."""

from functools import wraps
from itertools import chain
from typing import Any

from sequence_hooks.v1.core.scheduler import HookScheduler
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import Request


def check_counts(scheduler: HookScheduler) -> None:
    """From now on, let ``scheduler`` compare its statistics of each step with its queues."""
    make_stats = scheduler.make_stats

    @wraps(make_stats)
    def checked(*args: Any, **kwargs: Any) -> SchedulerStats | None:
        stats = make_stats(*args, **kwargs)
        if stats is not None:
            told = stats.num_running_reqs, stats.num_waiting_reqs, stats.num_skipped_waiting_reqs
            # Without a tree they are upstream's own, and some releases count what a step has skipped apart.
            assert told == _counts(scheduler) or (not scheduler.branches and sum(told) == sum(_counts(scheduler)))
        return stats

    scheduler.make_stats = checked  # type: ignore[method-assign]


def _counts(scheduler: HookScheduler) -> tuple[int, int, int]:
    glue, branches, set_aside = scheduler._injection.glue, scheduler.branches, scheduler.deferred

    def request_of(sequence: Request) -> str:
        owner = glue[sequence.request_id].owner if sequence.request_id in glue else sequence
        branch = branches.get(owner.request_id)
        return owner.request_id if branch is None else branch.root.request_id

    queued = list(chain(scheduler.waiting, scheduler.waiting_with_kv))
    running = set(map(request_of, scheduler.running))
    waiting = {request_of(each) for each in queued if each not in set_aside} - running
    deferred = {request_of(each) for each in queued if each in set_aside} - running - waiting
    return len(running), len(waiting), len(deferred)
