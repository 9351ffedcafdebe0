# SPDX-License-Identifier: Apache-2.0
"""An engine without a model: real scheduler, block manager and output processor, scripted tokens.

`step` does what `LLMEngine.step` does around the model: schedule, count the scheduled tokens as
computed, hand one token to every group that samples, free what has finished.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mytests.harness.base import BaseEngine, Scheduled
from mytests.harness.characters import EOS, CharTokenizer, ids
from mytests.harness.stepped import Tokens, chooser
from mytests.harness.v0.characters import detokenizer_of
from mytests.harness.v0.groups import assert_no_group_left, cached_blocks, sampling_of, trace_span
from mytests.harness.v0.worker import PretendedWorker
from sequence_hooks.kv.step_costs import StepCosts
from sequence_hooks.results import Waiting
from sequence_hooks.serving.live.trees import LiveRequests, Tree
from sequence_hooks.tree.positions import PLAIN, Positions
from sequence_hooks.tree.transcript import waiting_of
from vllm.config import CacheConfig, LoRAConfig, SchedulerConfig
from vllm.core.hook_scheduler import HookScheduler
from vllm.core.hooked_sequence import V0Branch, V0Sequence, attach, branch_of
from vllm.engine import live
from vllm.engine.output_processor.interfaces import SequenceGroupOutputProcessor
from vllm.engine.output_processor.sequence_hook import EngineFacts
from vllm.engine.output_processor.stop_checker import StopChecker
from vllm.inputs import token_inputs
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput, RequestOutputFactory, index_of
from vllm.sampling_params import SamplingParams
from vllm.sequence import (
    CompletionSequenceGroupOutput,
    Logprob,
    Sequence,
    SequenceGroup,
    SequenceGroupBase,
    SequenceOutput,
)
from vllm.utils import Counter

QUEUES = ("waiting", "running", "swapped", "blocked", "forked")


@dataclass
class ScheduledGroup(Scheduled):
    """One group's part of a step."""

    is_prefill: bool


@dataclass
class SurgicalEngine(BaseEngine[RequestOutput]):
    """See the module's docstring."""

    scheduler: HookScheduler = field(init=False, repr=False)
    worker: PretendedWorker = field(init=False, repr=False)
    prefix_caching: bool = False
    tokenizer: Any = field(default_factory=CharTokenizer)
    detokenizer: Any = None
    """If None, that of the tokenizer."""

    facts: EngineFacts | None = None
    """Instead of the tokenizer and ``vocab_size``."""

    output_proc_callback: Callable[..., None] | None = None
    """Processes a group's pending output before it is preempted; makes the scheduler an asynchronous one."""

    num_cpu_blocks: int = 0
    """Swap space; if there is any, preemption swaps out instead of recomputing."""

    scheduler_cls: type[HookScheduler] = HookScheduler
    samples: dict[str, SequenceGroupBase] = field(default_factory=dict)
    """The groups of requests with n > 1, by the ids of their samples."""

    use_cached_outputs: bool = False
    asked_for_prompt_logprobs: list[str] = field(default_factory=list)
    """The requests that the worker was to compute prompt logprobs for, in order."""

    def __post_init__(self) -> None:
        self.detokenizer = self.detokenizer or detokenizer_of(self.tokenizer)
        self.worker = PretendedWorker(self.block_size)
        scheduler_config = SchedulerConfig(
            runner_type="generate",
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            enable_chunked_prefill=True,
            preemption_mode="swap" if self.num_cpu_blocks else None,
            policy=self.scheduling_policy,
        )
        lora_config = None if self.max_loras is None else LoRAConfig(max_loras=self.max_loras)
        cache_config = CacheConfig(block_size=self.block_size, swap_space=0, enable_prefix_caching=self.prefix_caching)
        cache_config.num_gpu_blocks, cache_config.num_cpu_blocks = self.num_blocks, self.num_cpu_blocks
        self.scheduler = self.scheduler_cls(
            scheduler_config, cache_config, lora_config, output_proc_callback=self.output_proc_callback
        )
        self.seq_counter = Counter()
        self.kv.positions_of = self.positions_of
        self.copies: list[tuple[int, int]] = []
        """Blocks copied on write so far: (from, to)."""

        self.finished_ids: list[str] = []
        """The ids of finished groups that the worker was told."""

        stop_checker = StopChecker(self.max_model_len, self._tokenizer_of)
        self.processor = SequenceGroupOutputProcessor.create_output_processor(
            scheduler_config,
            self.detokenizer,
            [self.scheduler],
            self.seq_counter,
            stop_checker.get_tokenizer_for_seq,
            stop_checker,
            special_kwargs=self.special_kwargs,
            facts=self.facts or EngineFacts(self.tokenizer or CharTokenizer(), self.vocab_size),
        )
        # All steps take equally long: what a test does must not depend on how fast it runs.
        self.scheduler.evictor.costs = StepCosts(clock=itertools.count().__next__)

    def add(
        self, request_id: str = "r", prompt: str = "prompt", priority: int = 0, adapter: int = 0, **params: Any
    ) -> SequenceGroup:
        sampling_params = SamplingParams(**{"max_tokens": 100, "logprobs": 1} | params)
        lora = LoRARequest(f"adapter {adapter}", adapter, "no such folder") if adapter else None
        seq = Sequence(next(self.seq_counter), token_inputs(ids(prompt)), self.block_size, EOS, lora)
        group = SequenceGroup(
            request_id, [seq], arrival_time=0.0, sampling_params=sampling_params, lora_request=lora, priority=priority
        )
        self.scheduler.add_seq_group(group)
        return group

    def plant(self, group: SequenceGroup) -> V0Branch:
        """Begin a group's tree, though no token of it has fired a hook."""
        root = self.scheduler.driver.add_root(V0Sequence(group))
        attach(root)
        return root

    def step(self, tokens: Tokens) -> list[ScheduledGroup]:
        choose = chooser(tokens)
        metadata, outputs, _ = self.scheduler.schedule()
        self.copies += outputs.blocks_to_copy
        finished_ids = self.scheduler.get_and_reset_finished_requests_ids()
        self.finished_ids += finished_ids
        for request_id in finished_ids:
            self.samples.pop(request_id, None)
            self.worker.kv.forget(request_id)
        adapters = {entry.seq_group.lora_int_id for entry in outputs.scheduled_seq_groups} - {0}
        # A worker checks this too.
        assert len(adapters) <= (self.max_loras or 0), f"{adapters} run at once, and there are {self.max_loras} slots"
        self.worker(metadata, outputs)
        scheduled = []
        for meta, entry in zip(metadata, outputs.scheduled_seq_groups, strict=True):
            group = entry.seq_group
            if self.prompts is not None:
                self.prompts.setdefault(group.request_id, list(group.first_seq.data.prompt_token_ids))
            if meta.is_prompt and meta.sampling_params.prompt_logprobs is not None:
                self.asked_for_prompt_logprobs.append(group.request_id)
            scheduled.append(ScheduledGroup(group.request_id, meta.token_chunk_size, meta.is_prompt))
            group.update_num_computed_tokens(meta.token_chunk_size)
            if meta.do_sample:
                self._sample(group, choose(sampling_of(group)))
        groups = [entry.seq_group for entry in outputs.scheduled_seq_groups]
        self.scheduler.free_finished_seq_groups()
        made = (
            RequestOutputFactory.create(group, self.samples, self.use_cached_outputs)
            for group in [*groups, *outputs.ignored_seq_groups]
        )
        self.handed_out = []
        self.hand_out(output for output in made if output is not None)
        return scheduled

    def abort(self, request_ids: str | list[str]) -> None:
        self.scheduler.abort_seq_group(request_ids)

    def resume(self, request_id: str, given: Any) -> None:
        self.processor.resume(request_id, given)

    def waits(self) -> list[Waiting]:
        return [waiting_of(branch, index_of(branch, self.samples)) for branch in self.processor.awaiting_resume()]

    def live_requests(self, limit: int, num_tokens: int) -> LiveRequests:
        return live.live_requests([self.scheduler], limit, num_tokens)

    def live_tree(self, request_id: str, num_tokens: int) -> Tree:
        return live.live_tree([self.scheduler], request_id, num_tokens)

    def is_waiting_for_callers(self) -> bool:
        return self.scheduler.is_waiting_for_callers()

    def is_idle(self) -> bool:
        return not self.has_unfinished()

    def has_unfinished(self) -> bool:
        unfinished: bool = self.scheduler.has_unfinished_seqs()
        return unfinished

    def blocks_of(self, request_id: str) -> list[int]:
        return self.block_table(self.request_of(request_id))

    def blocked_with_kv(self) -> list[str]:
        is_on_device = self.scheduler._blocks.is_on_device
        return [group.request_id for group in self.scheduler.blocked if is_on_device(group.first_seq)]

    def evict(self, request_id: str) -> None:
        self.scheduler.evictor.evict_all(self.request_of(request_id))

    def num_sampled(self, request_id: str) -> int:
        return sampling_of(self.request_of(request_id)).num_sampled

    def num_preemptions(self) -> int:
        count: int = self.scheduler.num_cumulative_preemption
        return count

    def statuses(self) -> dict[str, str]:
        return {group.request_id: group.first_seq.status.name for group in self.queued()}

    def queues(self) -> dict[str, list[str]]:
        return {name: [group.request_id for group in getattr(self.scheduler, name)] for name in QUEUES}

    def queued(self) -> list[SequenceGroup]:
        return [group for name in QUEUES for group in getattr(self.scheduler, name)]

    def request_of(self, request_id: str) -> SequenceGroup:
        return next(group for group in self.queued() if group.request_id == request_id)

    def positions_of(self, request_id: str) -> Positions:
        branch = branch_of(self.request_of(request_id))
        return PLAIN if branch is None else branch.positions

    def num_free_blocks(self) -> int:
        return self.scheduler.block_manager.get_num_free_gpu_blocks()

    def block_table(self, group: SequenceGroup) -> list[int]:
        return list(self.scheduler.block_manager.get_block_table(group.first_seq))

    def cached_blocks(self) -> list[int]:
        return cached_blocks(self.scheduler)

    def num_cached(self, request: SequenceGroup) -> int:
        return self.scheduler.block_manager.get_num_cached_tokens(request.first_seq)

    def run_traced(self, request: SequenceGroup, tokens: Tokens) -> None:
        self.run(tokens)
        trace_span(request)

    def assert_empty(self) -> None:
        assert_no_group_left(self.scheduler)
        assert not self.has_unfinished()

    def _tokenizer_of(self, seq: Sequence) -> Any:
        return self.tokenizer

    def _sample(self, group: SequenceGroup, token_id: int) -> None:
        sample = SequenceOutput(group.first_seq.seq_id, token_id, {token_id: Logprob(-1.0, 1)})
        output = CompletionSequenceGroupOutput(samples=[sample], prompt_logprobs=None)
        self.processor.process_outputs(group, [output], False)
