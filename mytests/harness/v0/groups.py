# SPDX-License-Identifier: Apache-2.0
"""What the tests ask of V0's groups and blocks: what a group samples next, its children, its span, what is cached."""

from types import SimpleNamespace

from opentelemetry import trace

from mytests.harness.stepped import Sampling
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


def trace_span(group: SequenceGroup) -> None:
    """Trace a group that has finished; upstream's engine does so, which a surgical one has not."""
    group.metrics.first_token_time = group.metrics.finished_time = 5.0
    engine = LLMEngine.__new__(LLMEngine)
    engine.tracer, engine.model_config = trace.get_tracer("test"), SimpleNamespace(model="tiny")
    engine.create_trace_span(group)


def cached_blocks(scheduler: Scheduler) -> list[int]:
    """All blocks that a request can find in the prefix cache."""
    return list(scheduler.block_manager.block_allocator._allocators[Device.GPU]._cached_blocks.values())
