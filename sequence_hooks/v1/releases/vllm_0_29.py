# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.29 and 0.30: no queue for waiting requests that hold KV, and routed experts are a field of the model.

The second model runner's sampler has no list of processors, but a method for each.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from sequence_hooks.v1.releases.vllm_0_31 import cascade_attention
from sequence_hooks.v1.releases.vllm_0_32 import Extend, Unsupported, routed_experts, trace_replay
from sequence_hooks.v1.releases.vllm_0_32 import ReleaseRequestState as ReleaseRequestState
from sequence_hooks.v1.releases.vllm_0_32 import completion_usage_type as completion_usage_type
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request


class ReleaseScheduler(Scheduler):
    """See `vllm_0_32.ReleaseScheduler`. The queue for requests that a step has skipped takes those that hold KV."""

    skipped_waiting: RequestQueue

    @property
    def waiting_with_kv(self) -> RequestQueue:
        return self.skipped_waiting

    @waiting_with_kv.setter
    def waiting_with_kv(self, queue: RequestQueue) -> None:
        self.skipped_waiting = queue

    @staticmethod
    def _holds_kv_blocks(request: Request) -> bool:
        # Upstream has its own place for a request whose KV is loaded.
        return False

    @property
    def deferred(self) -> set[Request]:
        # Upstream does not count them.
        return set()

    def _enqueue_waiting_request(self, request: Request) -> None:
        if self._holds_kv_blocks(request):
            self.skipped_waiting.add_request(request)
        else:
            super()._enqueue_waiting_request(request)

    def _select_waiting_queue_for_scheduling(self) -> RequestQueue | None:
        # Whatever its priority: upstream takes the first of either queue.
        first = self.skipped_waiting
        if first and self._holds_kv_blocks(first.peek_request()):
            return first
        selected: RequestQueue | None = super()._select_waiting_queue_for_scheduling()  # type: ignore[misc]
        return selected


def add_logits_processor(sampler: Any, processor: Any, after: Extend) -> None:
    """See `vllm_0_32.add_logits_processor`."""

    def add_request(slot: int, prompt_length: int, params: SamplingParams) -> None:
        # Upstream processes the logits of those requests alone that are marked.
        sampler.needs_logits_processing[slot] |= processor.add_request(slot, params)

    def apply(logits: Any, slots: Any, slots_on_host: Any, input_ids: Any, places: Any) -> None:
        context = SimpleNamespace(expanded_idx_mapping=slots, idx_mapping_np=slots_on_host)
        context.input_ids, context.expanded_local_pos = input_ids, places
        processor.apply(logits, context)

    after(sampler, "add_request", add_request)
    after(sampler, "apply_staged_writes", processor.apply_staged_writes)
    # Bad words are what it does last before what may force a token.
    after(sampler.bad_words_state, "apply_bad_words", apply)


def unsupported(config: VllmConfig) -> Iterator[Unsupported]:
    """See `vllm_0_32.unsupported`."""
    yield routed_experts(config.model_config.enable_return_routed_experts)  # type: ignore[attr-defined]
    yield cascade_attention(config)
    yield trace_replay(config)
