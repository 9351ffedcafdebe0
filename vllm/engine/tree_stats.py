# SPDX-License-Identifier: Apache-2.0
"""Corrects upstream's statistics, which count each sequence group as a request: here a request is a tree of groups.

Tokens, latencies between tokens and preemptions remain those of all sequences.
"""

import copy
from collections.abc import Iterable, Set
from dataclasses import replace
from typing import Any

from vllm.core.hook_scheduler import HookScheduler
from vllm.core.hooked_sequence import branch_of, root_group
from vllm.core.scheduler import SchedulerOutputs
from vllm.engine.metrics_types import Stats
from vllm.sequence import SequenceGroup, SequenceStatus


class _Later(float):
    """Seconds before a token that is not a request's first."""


class _Member:
    """A group as upstream's statistics should see it."""

    def __init__(self, group: SequenceGroup, is_processed: bool) -> None:
        self._group, self._is_processed = group, is_processed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def is_finished(self) -> bool:
        """Children are not requests, and a request that ended at a join is counted by `add_finished`."""
        branch = branch_of(self._group)
        return self._group.is_finished() and (branch is None or not (branch.parent or branch.finished_at_join))

    def is_prefill(self) -> bool:
        """A processed group has sampled, though it may be about to prefill again."""
        return self._group.is_prefill() and not self._is_processed

    def get_last_token_latency(self) -> float:
        latency = self._group.last_token_latency
        return _Later(latency) if _has_had_a_token(self._group) else latency


def requests_alone(outputs: SchedulerOutputs, processed: Set[SequenceGroup]) -> SchedulerOutputs:
    """``outputs`` in which no child ends or has a first token, and in which no join has changed a group since.

    ``processed`` are the groups that were processed before the others.
    """
    alone = copy.copy(outputs)
    alone.scheduled_seq_groups = [
        replace(scheduled, seq_group=_Member(scheduled.seq_group, scheduled.seq_group in processed))  # type: ignore[arg-type]
        if scheduled.seq_group in processed
        or _is_child(scheduled.seq_group)
        or (index < outputs.num_prefill_groups and _has_had_a_token(scheduled.seq_group))
        else scheduled
        for index, scheduled in enumerate(outputs.scheduled_seq_groups)
    ]
    return alone


def still_skipped(skip: Iterable[int], outputs: SchedulerOutputs, processed: Set[SequenceGroup]) -> list[int]:
    """``skip``, the indices of groups that upstream leaves out as preempted, less those that were ``processed``."""
    return [index for index in skip if outputs.scheduled_seq_groups[index].seq_group not in processed]


def move_later_tokens(stats: Stats) -> None:
    """Count the time before children's first tokens, and after joins, as time between tokens."""
    times = stats.time_to_first_tokens_iter
    stats.time_to_first_tokens_iter = [time for time in times if not isinstance(time, _Later)]
    stats.time_per_output_tokens_iter += [float(time) for time in times if isinstance(time, _Later)]


def finished_at_join(outputs: SchedulerOutputs) -> list[SequenceGroup]:
    """The requests that ended because their children did, not with a token of this step."""
    groups = [group for group in outputs.ignored_seq_groups if branch_of(group) is not None]
    return [group for group in groups if group.is_finished() and not _is_child(group)]


def count_requests(stats: Stats, schedulers: Iterable[HookScheduler]) -> None:
    """Set the numbers of requests that are running, swapped out and waiting.

    A request counts as the first of these that applies to any of its sequences; as none of them if all of its
    sequences are BLOCKED, see ``vllm:num_requests_blocked``.
    """
    queues: dict[str, set[SequenceGroup]] = {"running": set(), "swapped": set(), "waiting": set()}
    for scheduler in schedulers:
        queues["running"] |= set(map(root_group, scheduler.running))
        queues["swapped"] |= set(map(root_group, scheduler.swapped))
        queues["waiting"] |= {*map(root_group, scheduler.waiting), *map(root_group, scheduler.forked)}
    queues["swapped"] -= queues["running"]
    queues["waiting"] -= queues["running"] | queues["swapped"]
    for name, roots in queues.items():
        setattr(stats, f"num_{name}_sys", len(roots))


def add_finished(stats: Stats, groups: Iterable[SequenceGroup]) -> None:
    """Add requests whose end upstream does not see."""
    for group in groups:
        metrics, length = group.metrics, group.first_seq.get_output_len()
        stats.time_e2e_requests.append(stats.now - metrics.arrival_time)
        stats.time_queue_requests.append(metrics.first_scheduled_time - metrics.arrival_time)
        stats.time_prefill_requests.append(metrics.first_token_time - metrics.first_scheduled_time)
        stats.time_decode_requests.append(stats.now - metrics.first_token_time)
        stats.time_inference_requests.append(stats.now - metrics.first_scheduled_time)
        stats.num_prompt_tokens_requests.append(group.first_seq.get_prompt_len())
        stats.num_generation_tokens_requests.append(length)
        stats.max_num_generation_tokens_requests.append(length)
        stats.n_requests.append(group.sampling_params.n)
        stats.max_tokens_requests.append(group.sampling_params.max_tokens)
        stats.finished_reason_requests.append(SequenceStatus.get_finished_reason(group.first_seq.status))


def _is_child(group: SequenceGroup) -> bool:
    branch = branch_of(group)
    return branch is not None and branch.parent is not None


def _has_had_a_token(group: SequenceGroup) -> bool:
    """Whether the last token that the group sampled is not its request's first."""
    return _is_child(group) or group.first_seq.get_output_len() > 1
