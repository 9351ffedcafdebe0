# SPDX-License-Identifier: Apache-2.0
"""Empty engines, after tests with a model."""

from vllm import LLM


def assert_empty(llm: LLM) -> None:
    """No group in any queue, no entry in any map, every block free."""
    (scheduler,) = llm.llm_engine.scheduler
    manager = scheduler.block_manager
    queues = scheduler.waiting, scheduler.running, scheduler.swapped, scheduler.blocked, scheduler.forked
    assert [list(queue) for queue in queues] == [[]] * 5
    assert not llm.llm_engine.has_unfinished_requests()
    assert (llm.llm_engine.seq_id_to_seq_group, manager.block_tables) == ({}, {})
    assert manager.get_num_free_gpu_blocks() == manager.num_total_gpu_blocks
