# SPDX-License-Identifier: Apache-2.0
"""An engine of V1 without a model: real scheduler, block manager and front end, a simulated worker, scripted tokens.

`SurgicalEngine` has the interface of `mytests.surgical.SurgicalEngine`, so that a test of a rule runs on both engines.
"""

from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal
from unittest.mock import patch

import torch

from mytests.characters import EOS, PROMISE, SYNC, ids
from mytests.stepped import Sampling as Sampling
from mytests.stepped import SteppedEngine, Tokens, chooser
from mytests.stepped import finished as finished
from mytests.stepped import plan as plan
from mytests.v1.characters import Detokenizable
from mytests.v1.configuration import surgical_config
from mytests.v1.counting import check_counts
from mytests.v1.leftovers import assert_no_request_left
from mytests.v1.worker import SimulatedWorker
from sequence_hooks import SpecialKwargs
from sequence_hooks.results import Waiting
from sequence_hooks.serving.live.trees import LiveRequests, Tree
from sequence_hooks.tree.driver import ForkJoinDriver
from sequence_hooks.v1.core.children import ChildRequests
from sequence_hooks.v1.core.scheduler import HookScheduler
from sequence_hooks.v1.core.sequence import V1Sequence
from sequence_hooks.v1.frontend import live
from sequence_hooks.v1.frontend.output_processor import HookOutputProcessor
from sequence_hooks.v1.frontend.outputs import RequestOutput
from sequence_hooks.v1.frontend.stat_logger import HookStatLogger
from sequence_hooks.v1.resuming import resumption
from vllm.config import LoRAConfig, VllmConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.metrics.stats import IterationStats, SchedulerStats
from vllm.v1.request import Request, RequestStatus
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder
from vllm.v1.structured_output import StructuredOutputManager

HOOKS = SpecialKwargs(sync_token_id=SYNC, promise_token_id=PROMISE)
SYNC_HOOKS = SpecialKwargs(sync_token_id=SYNC, promise_token_id=PROMISE, block_on="sync")


@dataclass
class Scheduled:
    """One request's part of a step."""

    request_id: str
    num_tokens: int


class Mode:
    """How engines run that are made without saying so; the tests of the rules run in all modes."""

    is_async = False
    runner = "v1"


@dataclass
class SurgicalEngine(SteppedEngine[RequestOutput]):
    """See the module's docstring."""

    special_kwargs: SpecialKwargs = HOOKS
    tokenizer: Any = field(default_factory=Detokenizable)
    prefix_caching: bool = True
    """Here for V0's sake: on V1 hooks need it."""

    max_loras: int | None = None
    """Here for V0's sake: nothing of it is checked."""

    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    is_async: bool = field(default_factory=lambda: Mode.is_async)
    """Whether the next step is scheduled before the last one's tokens are known, as on GPUs."""

    runner: str = field(default_factory=lambda: Mode.runner)
    """Which of upstream's model runners the worker behaves like."""

    chunk_size: int = 128
    """How many outputs the front end takes at once; upstream's asynchronous one does so."""

    log_stats: bool = True
    iterations: list[IterationStats] = field(default_factory=list)
    """Upstream's statistics of each step, as the front end counts them."""

    scheduler_stats: list[SchedulerStats] = field(default_factory=list)
    """Upstream's statistics of each step, as the scheduler counts them."""

    stat_logger: HookStatLogger | None = None
    """Is told of each step, if there is one."""

    def __post_init__(self) -> None:
        config = self._config()
        spec = FullAttentionSpec(block_size=self.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        # Upstream keeps one block that no request can have.
        kv = KVCacheConfig(self.num_blocks + 1, [], [KVCacheGroupSpec(["layer"], spec)])
        grammars = StructuredOutputManager(config)
        children = ChildRequests.of(config, grammars, self.tokenizer or Detokenizable(), self.vocab_size)
        # The tokenizer of a test is not its model's.
        with patch.object(ChildRequests, "of", return_value=children):
            self.scheduler = HookScheduler(config, kv, grammars, block_size=self.block_size, log_stats=self.log_stats)
        check_counts(self.scheduler)
        self.scheduler.use_v2_model_runner = self.runner == "v2"
        injects, overlaps = self.special_kwargs.injects_kv, self.special_kwargs.position_rule == "overlap"
        self.worker = SimulatedWorker(self.block_size, self.prompts, self.runner == "v1", injects, overlaps)
        processor = OutputProcessor(self.tokenizer, log_stats=self.log_stats)
        self.output_processor = HookOutputProcessor.install(processor, self.special_kwargs)
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(self.block_size, sha256)
        self._in_flight: deque[tuple[Any, Any]] = deque()
        self._num_preemptions: dict[str, int] = {}

    @property
    def driver(self) -> ForkJoinDriver[V1Sequence]:
        return self.scheduler.driver

    def add(
        self, request_id: str = "r", prompt: str = "prompt", priority: int = 0, adapter: int = 0, **params: Any
    ) -> Request:
        sampling_params = SamplingParams(**{"max_tokens": 100, "logprobs": 1, "temperature": 0} | params)
        if sampling_params.max_tokens is None:
            sampling_params.max_tokens = self.max_model_len - len(prompt)
        sampling_params.update_from_generation_config({}, EOS)
        lora = LoRARequest(f"adapter {adapter}", adapter, "no such folder") if adapter else None
        new = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=ids(prompt),
            mm_features=None,
            sampling_params=sampling_params,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=lora,
            cache_salt=None,
            data_parallel_rank=None,
            priority=priority,
            external_req_id=request_id,
        )
        self.output_processor.add_request(new, prompt)
        request = Request.from_engine_core_request(new, self._hasher)
        self.scheduler.add_request(request)
        return request

    def step(self, tokens: Tokens) -> list[Scheduled]:
        output = self.scheduler.schedule()
        self._num_preemptions |= {name: each.num_preemptions for name, each in self.scheduler.requests.items()}
        done = self.worker.run(output, self._chooser(tokens))
        self._in_flight.append((output, done))
        depth = 1 if self.is_async and output.total_num_scheduled_tokens else 0
        self.handed_out = []
        while len(self._in_flight) > depth:
            for client in self.scheduler.update_from_output(*self._in_flight.popleft()).values():
                self._hand_out(client)
        return [Scheduled(*each) for each in output.num_scheduled_tokens.items()]

    def abort(self, request_ids: str | list[str]) -> None:
        ids = [request_ids] if isinstance(request_ids, str) else request_ids
        aborted = self.output_processor.abort_requests(ids, internal=False)
        self.scheduler.finish_requests(aborted, RequestStatus.FINISHED_ABORTED)

    def resume(self, request_id: str, given: Any) -> None:
        new = resumption(self.output_processor, request_id, given, self.max_model_len, self.vocab_size)
        self.scheduler.add_request(Request.from_engine_core_request(new, self._hasher))

    def room_to_resume(self, request_id: str) -> int:
        """As the front end knows it, which learns of an abort of the sequence in the next step."""
        sequence = self.output_processor.trees.waiting_branch(request_id).sequence
        return self.max_model_len - len(sequence.prompt_token_ids) - len(sequence.output_token_ids)

    def waits(self) -> list[Waiting]:
        return self.output_processor.awaiting_resume()

    def live_requests(self, limit: int, num_tokens: int) -> LiveRequests:
        """What the page of running trees is told."""
        return live.live_requests(self.output_processor, limit, num_tokens)

    def live_tree(self, request_id: str, num_tokens: int) -> Tree:
        """What it is told about one of them."""
        return live.live_tree(self.output_processor, request_id, num_tokens)

    def is_waiting_for_callers(self) -> bool:
        return bool(self.awaiting()) and self.is_idle()

    def is_idle(self) -> bool:
        """Whether a step would do nothing: all have finished, or wait for a caller."""
        return not self.scheduler.has_requests() and not self._in_flight

    def has_unfinished(self) -> bool:
        """Whether any request has not finished, or a step is in flight."""
        return bool(self.scheduler.requests or self._in_flight)

    @property
    def asked_for_prompt_logprobs(self) -> list[str]:
        """The requests that the worker was to compute prompt logprobs for, in order."""
        return self.worker.asked_for_prompt_logprobs

    def blocks_of(self, request_id: str) -> list[int]:
        """The blocks of a sequence."""
        (blocks,) = self.scheduler.kv_cache_manager.get_block_ids(request_id)
        return blocks

    def num_preemptions(self) -> int:
        """How often a request was preempted."""
        return sum(self._num_preemptions.values())

    def num_sampled(self, request_id: str) -> int:
        """The number of output tokens that a sequence has sampled itself, as the scheduler knows."""
        return self._num_sampled(request_id, len(self.scheduler.requests[request_id].all_token_ids))

    def statuses(self) -> dict[str, str]:
        """The status of every unfinished request."""
        return {
            name: "BLOCKED" if name in self.scheduler.blocked else request.status.name
            for name, request in self.scheduler.requests.items()
        }

    def queues(self) -> dict[str, list[str]]:
        scheduler = self.scheduler
        queues: dict[str, Iterable[Request]] = {
            "waiting": scheduler.waiting,
            "waiting with KV": scheduler.waiting_with_kv,
            "running": scheduler.running,
            "blocked": scheduler.blocked.values(),
        }
        glue = scheduler._injection.glue
        return {
            name: [each.request_id for each in queue if each.request_id not in glue] for name, queue in queues.items()
        }

    def num_blocked(self) -> int:
        """The number of requests that are BLOCKED."""
        return list(self.statuses().values()).count("BLOCKED")

    def num_free_blocks(self) -> int:
        """The number of blocks that no request holds."""
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def num_injected(self) -> int:
        return len(self.worker.injected)

    def check_integrity(self) -> None:
        self.scheduler.check_integrity()

    def assert_empty(self) -> None:
        while not self.is_idle():
            self.step({})
        assert_no_request_left(self.scheduler, self.output_processor)
        assert not self.worker.tokens and not self.worker.tables

    def _chooser(self, tokens: Tokens) -> Callable[[str, list[int]], int]:
        choose = chooser(tokens)

        def choose_after(request_id: str, context: list[int]) -> int:
            if "_glue_" in request_id:
                return 0
            return choose(Sampling(request_id, self._num_sampled(request_id, len(context))))

        return choose_after

    def _num_sampled(self, request_id: str, num_tokens: int) -> int:
        branch = self.scheduler.branches.get(request_id)
        if branch is None:
            return num_tokens - self.scheduler.requests[request_id].num_prompt_tokens
        num_merged = sum(segment.end - segment.start for segment in branch.merged)
        return num_tokens - branch.sequence.num_prompt_tokens - num_merged

    def _hand_out(self, outputs: EngineCoreOutputs) -> None:
        outputs = MsgpackDecoder(EngineCoreOutputs).decode(MsgpackEncoder().encode(outputs))
        stats = IterationStats() if self.log_stats else None  # type: ignore[no-untyped-call]
        self.iterations += [] if stats is None else [stats]
        for start in range(0, len(outputs.outputs), self.chunk_size):
            chunk = outputs.outputs[start : start + self.chunk_size]
            processed = self.output_processor.process_outputs(chunk, outputs.timestamp, stats)
            self.scheduler.finish_requests(processed.reqs_to_abort, RequestStatus.FINISHED_ABORTED)
            self.hand_out(processed.request_outputs)
        if outputs.scheduler_stats is not None:
            self.scheduler_stats.append(outputs.scheduler_stats)
        if self.stat_logger is not None:
            self.stat_logger.record(outputs.scheduler_stats, stats)

    def _config(self) -> VllmConfig:
        config = surgical_config(self.special_kwargs, self.max_model_len)
        scheduler, cache = config.scheduler_config, config.cache_config
        if self.tokenizer is not None:
            # Upstream checks stop tokens against its model's vocabulary.
            config.model_config.model_arch_config = copy(config.model_config.model_arch_config)
            config.model_config.model_arch_config.vocab_size = self.vocab_size
        config.lora_config = None if self.max_loras is None else LoRAConfig(max_loras=self.max_loras)
        scheduler.async_scheduling, scheduler.policy = self.is_async, self.scheduling_policy
        scheduler.max_num_seqs, scheduler.max_num_batched_tokens = self.max_num_seqs, self.max_num_batched_tokens
        cache.num_gpu_blocks, cache.block_size = self.num_blocks + 1, self.block_size
        return config
