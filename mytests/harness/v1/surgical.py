# SPDX-License-Identifier: Apache-2.0
"""An engine of V1 without a model: real scheduler, block manager and front end, a simulated worker, scripted tokens."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from mytests.harness.base import BaseEngine, Scheduled
from mytests.harness.characters import EOS, ids
from mytests.harness.stepped import Sampling, Tokens, chooser
from mytests.harness.v1.characters import Detokenizable
from mytests.harness.v1.configuration import surgical_config
from mytests.harness.v1.flat import BothLogs
from mytests.harness.v1.layers import spec_of
from mytests.harness.v1.leftovers import assert_no_request_left, check_counts
from mytests.harness.v1.offloading import carrier_of
from mytests.harness.v1.worker import SimulatedWorker
from sequence_hooks.results import Waiting
from sequence_hooks.serving.live.trees import LiveRequests, Tree
from sequence_hooks.tree.positions import PLAIN, Positions
from sequence_hooks.v1.core.children import ChildRequests
from sequence_hooks.v1.core.event_log import EventLog
from sequence_hooks.v1.core.scheduler import HookScheduler
from sequence_hooks.v1.frontend import live
from sequence_hooks.v1.frontend.output_processor import HookOutputProcessor
from sequence_hooks.v1.frontend.outputs import RequestOutput
from sequence_hooks.v1.frontend.stat_logger import HookStatLogger
from sequence_hooks.v1.resuming import resumption
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.metrics.stats import IterationStats, SchedulerStats
from vllm.v1.request import Request, RequestStatus
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder
from vllm.v1.structured_output import StructuredOutputManager


@dataclass
class SurgicalEngine(BaseEngine[RequestOutput]):
    """See the module's docstring."""

    scheduler: HookScheduler = field(init=False, repr=False)
    worker: SimulatedWorker = field(init=False, repr=False)
    tokenizer: Any = field(default_factory=Detokenizable)
    prefix_caching: bool = True
    """Whether a request may find KV of another."""

    chunked_prefill: bool = True

    is_async: bool = field(default_factory=lambda: BaseEngine.mode.startswith("async"))
    """Whether the next step is scheduled before the last one's tokens are known, as on GPUs."""

    runner: str = field(default_factory=lambda: BaseEngine.mode.split("-")[1])
    """Which of upstream's model runners the worker behaves like."""

    num_stages: int = 1
    """Those of a pipeline: as many steps are in flight before the first one's tokens are known."""

    num_drafts: int = 0
    """How many tokens are drafted for each sequence in a step."""

    connector: str | None = None
    """Its KV connector, by its name, see `mytests.harness.v1.offloading.transfer_config`."""

    layers: tuple[str, ...] = ("full",)
    """One of each group of layers that has block tables of its own, by its name in `mytests.harness.v1.layers`."""

    chunk_size: int = 128
    """How many outputs the front end takes at once; upstream's asynchronous one does so."""

    weight_version: str | None = None
    """The version of its weights, which upstream tells with each step; None before 0.32."""

    is_compared: bool = True
    """Whether what it tells its front end is held against what it would tell one without trees."""

    log_stats: bool = True
    iterations: list[IterationStats] = field(default_factory=list)
    """Upstream's statistics of each step, as the front end counts them."""

    scheduler_stats: list[SchedulerStats] = field(default_factory=list)
    """Upstream's statistics of each step, as the scheduler counts them."""

    stat_logger: HookStatLogger | None = None
    """Is told of each step, if there is one."""

    def __post_init__(self) -> None:
        config = surgical_config(self, self.is_async)
        groups = [KVCacheGroupSpec([layer], spec_of(layer, self.block_size, self.num_drafts)) for layer in self.layers]
        # Upstream keeps one block that no request can have.
        kv = KVCacheConfig(self.num_blocks + 1, [], groups)
        grammars = StructuredOutputManager(config)
        children = ChildRequests.of(config, grammars, self.tokenizer or Detokenizable(), self.vocab_size)
        self._logs = BothLogs(self.special_kwargs) if self.is_compared else None
        log = EventLog() if self._logs is None else self._logs
        self._kinds: dict[str, RequestOutputKind] = {}
        # The tokenizer of a test is not its model's.
        with (
            patch.object(ChildRequests, "of", return_value=children),
            patch(f"{HookScheduler.__module__}.event_log_of", return_value=log),
        ):
            self.scheduler = HookScheduler(config, kv, grammars, block_size=self.block_size, log_stats=self.log_stats)
        check_counts(self.scheduler)
        assert self.runner in ("first", "second")
        self.scheduler.use_v2_model_runner = self.runner == "second"
        injects = self.special_kwargs.injects_kv
        self.worker = SimulatedWorker(
            self.num_blocks + 1, self.block_size, self.layers, self.prompts, self.runner == "first", injects
        )
        self.worker.drafter.num_drafts = self.num_drafts
        if self.connector is not None:
            self.worker.carrier = carrier_of(self.scheduler.connector, self.worker.kv)
        for _, _, kv_of_layer in self.worker._attention:
            kv_of_layer.positions_of = self.positions_of
        processor = OutputProcessor(self.tokenizer, log_stats=self.log_stats)
        self.output_processor = HookOutputProcessor.install(processor, self.special_kwargs)
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(self.block_size, sha256)
        self._in_flight: deque[tuple[Any, Any]] = deque()
        self._num_preemptions: dict[str, int] = {}

    def add(
        self, request_id: str = "r", prompt: str = "prompt", priority: int = 0, adapter: int = 0, **params: Any
    ) -> Request:
        sampling_params = SamplingParams(**{"max_tokens": 100, "logprobs": 1, "temperature": 0} | params)
        if sampling_params.max_tokens is None:
            sampling_params.max_tokens = self.max_model_len - len(prompt)
        sampling_params.update_from_generation_config({}, EOS)
        lora = LoRARequest(f"adapter {adapter}", adapter, "no such folder") if adapter else None
        nothing: dict[str, Any] = dict.fromkeys(("mm_features", "pooling_params", "cache_salt", "data_parallel_rank"))
        new = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=ids(prompt),
            sampling_params=sampling_params,
            arrival_time=0.0,
            lora_request=lora,
            priority=priority,
            external_req_id=request_id,
            **nothing,
        )
        self._kinds[request_id] = sampling_params.output_kind
        self.output_processor.add_request(new, prompt)
        request = Request.from_engine_core_request(new, self._hasher)
        self.scheduler.add_request(request)
        return request

    def step(self, tokens: Tokens) -> list[Scheduled]:
        output = self.scheduler.schedule()
        self._num_preemptions |= {name: each.num_preemptions for name, each in self.scheduler.requests.items()}
        done = self.worker.run(output, self._chooser(tokens))
        self._in_flight.append((output, done))
        most = self.num_stages - 1 + self.is_async
        depth = most if output.total_num_scheduled_tokens else 0
        self.handed_out = []
        while len(self._in_flight) > depth:
            for client in self.scheduler.update_from_output(*self._in_flight.popleft()).values():
                self._hand_out(client)
        if self.num_drafts and not self.is_async:
            self.scheduler.update_draft_token_ids(self.worker.drafter.take_proposed())
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
        return self.max_model_len - self.output_processor.trees.paused_branch(request_id).num_context

    def waits(self) -> list[Waiting]:
        return self.output_processor.awaiting_resume()

    def live_requests(self, limit: int, num_tokens: int) -> LiveRequests:
        return live.live_requests(self.output_processor, limit, num_tokens)

    def live_tree(self, request_id: str, num_tokens: int) -> Tree:
        return live.live_tree(self.output_processor, request_id, num_tokens)

    def is_waiting_for_callers(self) -> bool:
        return bool(self.awaiting()) and self.is_idle()

    def is_idle(self) -> bool:
        return not self.scheduler.has_requests() and not self._in_flight

    def has_unfinished(self) -> bool:
        """Whether any request has not finished, or a step is in flight."""
        return bool(self.scheduler.requests or self._in_flight)

    @property
    def asked_for_prompt_logprobs(self) -> list[str]:
        """The requests that the worker was to compute prompt logprobs for, in order."""
        return self.worker.asked_for_prompt_logprobs

    def blocks_of(self, request_id: str) -> list[int]:
        tables = self.scheduler.kv_cache_manager.get_block_ids(request_id)
        return [block for table in tables for block in table if block]

    def blocked_with_kv(self) -> list[str]:
        return [
            name
            for name, request in self.scheduler.blocked.items()
            if request.num_computed_tokens and request.status == RequestStatus.PREEMPTED
        ]

    def evict(self, request_id: str) -> None:
        self.scheduler.kv.evict(self.scheduler.evictor.candidate(self.scheduler.blocked[request_id]))

    def num_preemptions(self) -> int:
        return sum(self._num_preemptions.values())

    def num_sampled(self, request_id: str) -> int:
        return self._num_sampled(request_id, len(self.scheduler.requests[request_id].all_token_ids))

    def statuses(self) -> dict[str, str]:
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

    def positions_of(self, request_id: str) -> Positions:
        # Glue is computed at its owner's.
        branch = self.scheduler.branches.get(request_id.split("_glue_")[0])
        return PLAIN if branch is None else branch.positions

    def num_free_blocks(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def cached_blocks(self) -> list[int]:
        blocks = self.scheduler.kv_cache_manager.block_pool.blocks
        return [block.block_id for block in blocks if block.block_hash is not None]

    def num_cached(self, request: Request) -> int:
        found: int = self.scheduler._get_local_prefix_cache_hit(request)[1]
        return found

    def request_of(self, request_id: str) -> Request:
        request: Request = self.scheduler.requests[request_id]
        return request

    def run_traced(self, request: Request, tokens: Tokens) -> None:
        self.output_processor.tracing_enabled = True
        self.run(tokens)

    def assert_empty(self) -> None:
        while not self.is_idle():
            self.step({})
        assert_no_request_left(self.scheduler, self.output_processor)
        assert not self.worker.tokens and not self.worker.tables
        if self._logs is not None:
            self._logs.assert_empty()

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
        num_merged = sum(each.end - each.start for each in branch.merged if each.origin != "sampled")
        return num_tokens + branch.num_replaced - branch.sequence.num_prompt_tokens - num_merged

    def _hand_out(self, outputs: EngineCoreOutputs) -> None:
        outputs = MsgpackDecoder(EngineCoreOutputs).decode(MsgpackEncoder().encode(outputs))
        stats = IterationStats() if self.log_stats else None  # type: ignore[no-untyped-call]
        self.iterations += [] if stats is None else [stats]
        version = {} if self.weight_version is None else {"weight_version": self.weight_version}
        for start in range(0, len(outputs.outputs), self.chunk_size):
            chunk = outputs.outputs[start : start + self.chunk_size]
            processed = self.output_processor.process_outputs(chunk, outputs.timestamp, stats, **version)
            self.scheduler.finish_requests(processed.reqs_to_abort, RequestStatus.FINISHED_ABORTED)
            self.hand_out(processed.request_outputs)
            for each in processed.request_outputs:
                if each.finished and self._logs is not None:
                    self._logs.check(each, self._kinds[each.request_id])
        if outputs.scheduler_stats is not None:
            self.scheduler_stats.append(outputs.scheduler_stats)
        if self.stat_logger is not None:
            self.stat_logger.record(outputs.scheduler_stats, stats)
