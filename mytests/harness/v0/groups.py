# SPDX-License-Identifier: Apache-2.0
"""What the tests ask of V0's groups and blocks; and checks that an idle engine holds none of them."""

from types import SimpleNamespace

from opentelemetry import trace

from mytests.harness.stepped import Sampling
from vllm import LLM
from vllm.core.hook_scheduler import HookScheduler
from vllm.core.hooked_sequence import branch_of
from vllm.core.scheduler import Scheduler
from vllm.engine.llm_engine import LLMEngine
from vllm.sequence import SequenceGroup
from vllm.utils import Device


def sampling_of(group: SequenceGroup) -> Sampling:
    """A group at the time when it samples its next token."""
    branch = branch_of(group)
    num_sampled = group.first_seq.get_output_len() if branch is None else branch.num_sampled
    return Sampling(group.request_id, num_sampled)


def child_of(group: SequenceGroup, index: int = 0) -> SequenceGroup:
    branch = branch_of(group)
    assert branch is not None
    return branch.children[index].sequence.group


def tracing_engine() -> LLMEngine:
    """An engine that does nothing but trace."""
    engine = LLMEngine.__new__(LLMEngine)
    engine.tracer, engine.model_config = trace.get_tracer("test"), SimpleNamespace(model="tiny")
    return engine


def trace_span(group: SequenceGroup) -> None:
    """Trace a group that has finished; upstream's engine does so, which a surgical one has not."""
    group.metrics.first_token_time = group.metrics.finished_time = 5.0
    tracing_engine().create_trace_span(group)


def cached_blocks(scheduler: Scheduler) -> list[int]:
    """All blocks that a request can find in the prefix cache."""
    return list(scheduler.block_manager.block_allocator._allocators[Device.GPU]._cached_blocks.values())


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
