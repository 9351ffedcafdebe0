# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.32 and later releases. The other modules of this package say what is different in theirs.

0.33 caps prefix hits, but only where it returns routed experts, which are refused: a fork needs no cap.
"""

from collections.abc import Callable, Iterator
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.output_processor import RequestState
from vllm.v1.request import Request

Extend = Callable[[Any, str, Callable[..., None]], None]

Unsupported = tuple[bool, str, Any, str]
"""Whether an engine has it, its name and value, and the way out."""


class ReleaseScheduler(Scheduler):
    """Upstream's scheduler. Requests for which `_holds_kv_blocks` is true wait in `waiting_with_kv`."""

    @property
    def waiting_with_kv(self) -> RequestQueue:
        """The waiting requests that are admitted before those in ``waiting``."""
        queue: RequestQueue = self.kv_holding_waiting
        return queue

    @waiting_with_kv.setter
    def waiting_with_kv(self, queue: RequestQueue) -> None:
        self.kv_holding_waiting = queue

    @property
    def deferred(self) -> set[Request]:
        """The waiting requests that upstream counts as deferred."""
        requests: set[Request] = self.deferred_waiting
        return requests

    def _mamba_block_aligned_split(self, request: Request, num_new_tokens: int, *num_found: int, **more: int) -> int:
        # Upstream lets a model that saves states within a step run past the block in which a prefix of the length of
        # some `prefix_match_unit` has ended, and enters the state after that prefix as the one after the whole block.
        split: int = super()._mamba_block_aligned_split(request, num_new_tokens, *num_found, **more)
        start = request.num_computed_tokens + sum(num_found) + sum(more.values())
        size: int = self.cache_config.block_size
        return min(split, size - start % size) if start % size else split


class ReleaseRequestState(RequestState):
    """Upstream's state of a request in the front end."""


def unsupported(config: VllmConfig) -> Iterator[Unsupported]:
    """What an engine with this release cannot have with hooks."""
    yield routed_experts(config.aux_output_config.enable_return_routed_experts)
    yield trace_replay(config)


def routed_experts(is_set: bool) -> Unsupported:
    """Routed experts are recorded as tokens are computed, and a tree's are computed by several sequences."""
    return is_set, "enable_return_routed_experts", True, "leave it out: those of a tree are not put together"


def trace_replay(config: VllmConfig) -> Unsupported:
    """A trace is forced on a request by the number of tokens that it has sampled since its prompt."""
    is_set = config.model_config.enable_trace_replay
    return is_set, "enable_trace_replay", True, "leave it out: a trace says nothing of children, nor of joins"


def add_logits_processor(sampler: Any, processor: Any, after: Extend) -> None:
    """Let a processor of logits come after those that the second model runner's ``sampler`` has.

    Args:
        processor: Has the methods of upstream's ``LogitsProcessor`` of that runner.
        after: Lets a function run after a method of an object, where the sampler has no list of processors.
    """
    sampler.logits_processors.append(processor)


def completion_usage_type() -> type:
    """The OpenAI server's class for details of completion tokens; only a server imports its module."""
    from vllm.entrypoints.serve.engine.protocol import CompletionTokenUsageInfo

    return CompletionTokenUsageInfo
