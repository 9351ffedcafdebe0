# SPDX-License-Identifier: Apache-2.0
"""Checks that an idle engine of V0 holds nothing: no group in any queue, no entry in any map, and no block."""

from vllm import LLM
from vllm.core.hook_scheduler import HookScheduler
from vllm.engine.llm_engine import LLMEngine


def assert_no_group_left(scheduler: HookScheduler) -> None:
    """Raise an `AssertionError` unless every queue and map of a scheduler is empty, and every block is free."""
    manager = scheduler.block_manager
    tracker = manager._computed_blocks_tracker
    queues = scheduler.waiting, scheduler.running, scheduler.swapped, scheduler.blocked, scheduler.forked
    assert [list(queue) for queue in queues] == [[]] * 5
    assert manager.block_tables == {}, f"blocks are left of sequences {list(manager.block_tables)}"
    scheduler.check_integrity()
    assert not scheduler.trees.has_unsettled and not list(scheduler.trees.branches)
    assert not scheduler.forked.has_trees and not list(scheduler.forked.running)
    assert not scheduler._kept and scheduler._finished_at_join == []
    assert (tracker._seq_id_to_blocks_hashes, tracker._seq_id_to_num_tokens_computed) == ({}, {})
    assert manager.get_num_free_gpu_blocks() == manager.num_total_gpu_blocks
    assert manager.get_num_free_cpu_blocks() == manager.num_total_cpu_blocks


def assert_engine_empty(engine: LLMEngine) -> None:
    """Raise an `AssertionError` unless an engine has told of everything, and its scheduler holds nothing."""
    (scheduler,) = engine.scheduler
    assert not engine.has_unfinished_requests()
    assert engine.seq_id_to_seq_group == {}
    assert not any(context.output_queue for context in engine.scheduler_contexts)
    assert_no_group_left(scheduler)


def assert_empty(llm: LLM) -> None:
    """The same of an `LLM`."""
    assert_engine_empty(llm.llm_engine)
