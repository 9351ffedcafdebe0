# SPDX-License-Identifier: Apache-2.0
"""Checks that V1 counts what it has, and that an idle engine holds nothing: no request, no block."""

from functools import wraps
from itertools import chain
from typing import Any

from mytests.harness.v1.paths import IS_SECOND_RUNNER
from sequence_hooks.v1.core.scheduler import HookScheduler
from sequence_hooks.v1.frontend.output_processor import HookOutputProcessor
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


def assert_no_request_left(scheduler: HookScheduler, output_processor: HookOutputProcessor) -> None:
    """Raise an `AssertionError` unless every queue and map of core and front end is empty, and every block is free."""
    scheduler.check_integrity()
    assert not scheduler.requests and not scheduler.branches and not scheduler.blocked
    assert not scheduler.running and not len(scheduler.waiting) and not len(scheduler.waiting_with_kv)
    assert not scheduler._admission.order.has_trees and not list(scheduler._admission.order.running)
    assert not scheduler._inflight_prefills
    assert not scheduler.deferred
    assert not scheduler.trees.has_unsettled and not list(scheduler.trees.branches)
    assert not scheduler.kv.forks.children and not scheduler._events
    assert not scheduler.kv.kept and not scheduler.kv.kept._children
    assert not scheduler._injection.glue and not scheduler._injection._glue_of and not scheduler._injection.copies
    pool = scheduler.kv_cache_manager.block_pool
    # The first block is upstream's null block, which no request can have.
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    assert [block.block_id for block in pool.blocks if block.ref_cnt and not block.is_null] == []
    for manager in scheduler.kv_cache_manager.coordinator.single_type_managers:
        assert not manager.req_to_blocks and not manager.num_cached_block
    assert not output_processor.request_states and not output_processor._replay.branches
    assert not output_processor._states
    assert not output_processor._side_outputs._with_deltas and not output_processor._side_outputs._waiting
    assert not list(output_processor._replay.trees.branches) and not output_processor._replay.trees.has_unsettled
    # Upstream keeps those in ``parent_requests`` whose samples were aborted.
    assert not output_processor.external_req_ids


def assert_worker_empty(worker: Any) -> None:
    """Raise an `AssertionError` unless the model runner of one of upstream's workers holds no request."""
    runner = worker.model_runner
    if IS_SECOND_RUNNER:
        assert not runner.req_states.req_id_to_index
        assert len(runner.req_states.free_indices) == runner.max_num_reqs
        return
    batch = runner.input_batch
    left = {
        f"{type(owner).__name__}.{name}": value
        for owner in (runner, batch, *batch.logitsprocs.all)
        for name, value in vars(owner).items()
        if name in _OF_REQUESTS or (owner is not runner and isinstance(value, (dict, set)))
        if value
    }
    assert left == {}, f"the worker holds {left}"
    assert batch.num_reqs == 0


_OF_REQUESTS = ("requests", "num_prompt_logprobs")
"""The attributes of a model runner that are maps by request."""
