# SPDX-License-Identifier: Apache-2.0
"""Upstream's V0 engine, with an output processor that handles the sequence hooks if there are any."""

import time
from collections.abc import Sequence as Ids
from typing import TYPE_CHECKING, Any

from sequence_hooks.results import Waiting
from sequence_hooks.serving.live.trees import LiveRequests, LiveSequence
from sequence_hooks.tree.resume import ResumeRoom
from sequence_hooks.tree.transcript import waiting_of
from vllm._overlay import fall_back_to
from vllm._upstream.engine import llm_engine as upstream
from vllm.config import VllmConfig
from vllm.core.scheduler import ScheduledSequenceGroup, SchedulerOutputs
from vllm.engine.admission import admit
from vllm.engine.guard import guard_processors
from vllm.engine.live import live_requests, live_tree
from vllm.engine.output_processor.interfaces import SequenceGroupOutputProcessor
from vllm.engine.output_processor.sequence_hook import EngineFacts, SequenceHookOutputProcessor
from vllm.engine.request_checks import ModelFacts, check_request, only_value_errors
from vllm.engine.tree_spans import trace_tree
from vllm.engine.tree_stats import (
    add_finished,
    count_requests,
    finished_at_join,
    move_later_tokens,
    requests_alone,
    still_skipped,
)
from vllm.outputs import RequestOutputFactory, index_of
from vllm.sampling_params import SamplingParams
from vllm.sequence import Sequence, SequenceGroup, SequenceGroupMetadata

if TYPE_CHECKING:
    from vllm._upstream.engine.llm_engine import SchedulerContext
    from vllm.engine.metrics_types import Stats
    from vllm.model_executor.layers.sampler import SamplerOutput


class LLMEngine(upstream.LLMEngine):
    """Upstream's `LLMEngine`; ``vllm_config.special_kwargs`` switches sequence hooks on."""

    output_processor: SequenceGroupOutputProcessor

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        self._processed: set[SequenceGroup] = set()
        """Groups of the pending step that were processed immediately; for the statistics."""

        special_kwargs = vllm_config.special_kwargs
        if special_kwargs is not None:
            stop_checker = self.output_processor.stop_checker
            self.output_processor = SequenceGroupOutputProcessor.create_output_processor(
                self.scheduler_config,
                self.detokenizer,
                self.scheduler,
                self.seq_counter,
                stop_checker.get_tokenizer_for_seq,
                stop_checker,
                special_kwargs=special_kwargs,
                facts=EngineFacts(
                    tokenizer=self.get_tokenizer() if self.tokenizer else None,
                    vocab_size=self.model_config.get_vocab_size(),
                    complete_params=self._complete_params,
                ),
            )

            if self.log_stats and "prometheus" in self.stat_loggers:
                self._add_hook_metrics()

    def _add_hook_metrics(self) -> None:
        # Imported here, as upstream does, once the environment of prometheus_client is set.
        from vllm.engine.hook_metrics import HookStatLogger

        interval = self.stat_loggers["prometheus"].local_interval
        labels = {"model_name": self.model_config.served_model_name}
        self.add_logger("hooks", HookStatLogger(interval, labels, self.scheduler))

    def resume_sequence(self, request_id: str, text_or_token_ids: str | Ids[int] | None = None) -> None:
        """Let a sequence that waits at its sync token continue, with ``sync_resume="manual"``.

        It resumes once its children have finished too, with their results followed by what is given here;
        a text is tokenized without special tokens.

        Args:
            request_id: The id of the sequence: the request's, or a child's. See `sequences_awaiting_resume`.
            text_or_token_ids: What to append, such as a tool's answer; nothing by default.

        Raises:
            ValueError: no such sequence waits, an id is not in the vocabulary, or there are more of them than the
                model's length has room for. The sequence then keeps waiting.
        """
        self._hooks().resume(request_id, text_or_token_ids)

    def room_to_resume(self, request_id: str) -> ResumeRoom:
        """How much `resume_sequence` may give to a sequence that waits, so that a caller can encode a text elsewhere.

        Raises:
            ValueError: no such sequence waits.
        """
        return self._hooks().room_to_resume(request_id)

    def sequences_awaiting_resume(self) -> list[Waiting]:
        """The sequences that continue only after `resume_sequence`, in the order in which they were BLOCKED."""
        waiting = self._hooks().awaiting_resume()
        return [waiting_of(branch, index_of(branch, self.seq_id_to_seq_group)) for branch in waiting]

    def live_requests(self, limit: int, num_tokens: int) -> LiveRequests:
        """See `sequence_hooks.serving.live.routes.Watched`."""
        return live_requests(self.scheduler, limit, num_tokens)

    def live_tree(self, request_id: str, num_tokens: int) -> tuple[LiveSequence, ...]:
        """See `sequence_hooks.serving.live.routes.Watched`."""
        return live_tree(self.scheduler, request_id, num_tokens)

    def is_waiting_for_callers(self, virtual_engine: int = 0) -> bool:
        """Whether steps do nothing until a sequence is resumed or a request is added."""
        hooks_on = self.vllm_config.special_kwargs is not None
        return hooks_on and self.scheduler[virtual_engine].is_waiting_for_callers()

    def _get_stats(
        self,
        scheduler_outputs: SchedulerOutputs | None,
        model_output: "list[SamplerOutput] | None" = None,
        finished_before: list[int] | None = None,
        skip: list[int] | None = None,
    ) -> "Stats":
        """Upstream's `_get_stats`, in which a request and its children count once."""
        if self.vllm_config.special_kwargs is None:
            return super()._get_stats(scheduler_outputs, model_output, finished_before, skip)
        seen = scheduler_outputs
        if scheduler_outputs is not None:
            seen = requests_alone(scheduler_outputs, self._processed)
            skip = still_skipped(skip or (), scheduler_outputs, self._processed)
        stats = super()._get_stats(seen, model_output, finished_before, skip)
        count_requests(stats, self.scheduler)
        move_later_tokens(stats)
        if scheduler_outputs is not None:
            add_finished(stats, finished_at_join(scheduler_outputs))
            self._processed -= {scheduled.seq_group for scheduled in scheduler_outputs.scheduled_seq_groups}
        return stats

    def do_tracing(self, scheduler_outputs: SchedulerOutputs, finished_before: list[int] | None = None) -> None:
        """Upstream's `do_tracing`, which also traces requests that ended at a join."""
        super().do_tracing(scheduler_outputs, finished_before)
        if self.is_tracing_enabled():
            for group in finished_at_join(scheduler_outputs):
                self.create_trace_span(group)

    def create_trace_span(self, seq_group: SequenceGroup) -> None:
        """Upstream's span, and below it those of the request's children.

        A group without a finish time either was joined since its step, and is traced with its join; or is one of n
        samples, none of which upstream can trace.
        """
        if seq_group.metrics.finished_time is not None:
            trace_tree(self, super().create_trace_span, seq_group)

    def _add_processed_request(
        self, request_id: str, processed_inputs: Any, params: Any, *args: Any, **kwargs: Any
    ) -> SequenceGroup | None:
        """Upstream's `_add_processed_request`, after refusing a request that would fail once it is scheduled."""
        with only_value_errors():
            admit(request_id, processed_inputs, params, self.vllm_config.special_kwargs, self._model_facts())
            self.output_processor.stop_checker.logged_requests.forget(request_id)
            return super()._add_processed_request(request_id, processed_inputs, params, *args, **kwargs)

    def _create_sequence_group_with_sampling(
        self, request_id: str, seq: Sequence, *args: Any, **kwargs: Any
    ) -> SequenceGroup:
        """Upstream's group, with guarded logits processors: what one raises in a step ends only its own sequence."""
        group = super()._create_sequence_group_with_sampling(request_id, seq, *args, **kwargs)
        guard_processors(group.sampling_params, request_id, seq.eos_token_id)
        return group

    def _advance_to_next_step(
        self,
        output: "SamplerOutput",
        seq_group_metadata_list: list[SequenceGroupMetadata],
        scheduled_seq_groups: list[ScheduledSequenceGroup],
    ) -> None:
        """Upstream's `_advance_to_next_step`, then the processing of outputs that may block their sequence.

        Upstream calls it where all outputs are processed while the next step runs.
        """
        super()._advance_to_next_step(output, seq_group_metadata_list, scheduled_seq_groups)
        if self.vllm_config.special_kwargs is None:
            return
        pending = [each for each in self.scheduler_contexts if each.seq_group_metadata_list is seq_group_metadata_list]
        entries = zip(seq_group_metadata_list, output, scheduled_seq_groups, strict=True)
        tokens = {
            scheduled.seq_group: sampled.samples[0].output_token
            for metadata, sampled, scheduled in entries
            if metadata.do_sample and not scheduled.seq_group.is_finished()
        }
        for group in tokens:
            if group.request_id in self.seq_id_to_seq_group:
                # Its token is appended: it has no text yet, and may end the sample.
                group.first_seq.has_unprocessed = True
        for group, token in tokens.items():
            if self._hooks().must_process_now(group, token):
                self._process_now(pending[0], group)

    def _process_now(self, context: "SchedulerContext", group: SequenceGroup) -> None:
        """Process one group's part of the step, and hand out its output if it is unfinished."""
        self._process_model_outputs(context, request_id=group.request_id)
        if self.log_stats:
            self._processed.add(group)
        if group.is_finished():
            for scheduler in self.scheduler:
                scheduler.free_finished_seq_groups()
            return
        now = time.time()
        group.maybe_set_first_token_time(now)
        group.set_last_token_time(now)
        request_output = RequestOutputFactory.create(group, self.seq_id_to_seq_group, use_cache=self.use_cached_outputs)
        if request_output is None:
            return
        if self.process_request_outputs_callback is None:
            context.request_outputs.append(request_output)
        else:
            self.process_request_outputs_callback([request_output])

    def _process_model_outputs(self, ctx: "SchedulerContext", request_id: str | None = None) -> None:
        """Upstream's `_process_model_outputs`; skips a processed group, for which a preemption would ask again."""
        if request_id is not None and ctx.output_queue:
            pending = ctx.output_queue[0]
            if any(pending.seq_group_metadata_list[index].request_id == request_id for index in pending.skip):
                return
        super()._process_model_outputs(ctx, request_id)

    def _hooks(self) -> SequenceHookOutputProcessor:
        if not isinstance(self.output_processor, SequenceHookOutputProcessor):
            raise ValueError('special_kwargs is None, so no sequence waits; set it, with sync_resume="manual"')
        return self.output_processor

    def _complete_params(self, params: SamplingParams, seq: Sequence) -> SamplingParams:
        """Do to the parameters of a child what is done to those of a new request."""
        check_request(params, self._model_facts())
        params = self._build_logits_processors(params, seq.lora_request)
        params.update_from_generation_config(self.generation_config_fields, seq.eos_token_id)
        guard_processors(params, seq.branch.request_id, seq.eos_token_id)
        return params

    def _model_facts(self) -> ModelFacts:
        return ModelFacts.of(self.model_config, self.cache_config)


__getattr__ = fall_back_to("vllm._upstream.engine.llm_engine")
