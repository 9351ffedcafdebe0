# SPDX-License-Identifier: Apache-2.0
"""Asynchronous output processing without a model: upstream's `LLMEngine`, ours, around a surgical engine."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from mytests.harness.surgical import SYNC_HOOKS, Sampling, SurgicalEngine, plan
from mytests.harness.v0.groups import sampling_of
from vllm.config import SpecialKwargs
from vllm.engine.llm_engine import LLMEngine, SchedulerContext
from vllm.outputs import RequestOutput
from vllm.sequence import CompletionSequenceGroupOutput, Logprob, SequenceGroup, SequenceOutput


class AsyncEngine:
    """Runs steps as `LLMEngine.step` does when outputs are processed asynchronously."""

    def __init__(self, hooks: SpecialKwargs = SYNC_HOOKS, with_hooks: bool = True, **sizes: Any) -> None:
        self.context = SchedulerContext()
        self.surgical = SurgicalEngine(hooks, output_proc_callback=self._process, **sizes)
        engine: Any = LLMEngine.__new__(LLMEngine)
        engine.vllm_config = SimpleNamespace(special_kwargs=hooks if with_hooks else None)
        engine.output_processor, engine.scheduler = self.surgical.processor, [self.surgical.scheduler]
        engine.scheduler_config, engine.scheduler_contexts = self.surgical.scheduler.scheduler_config, [self.context]
        engine.model_config, engine.speculative_config = SimpleNamespace(runner_type="generate"), None
        engine.seq_id_to_seq_group, engine.use_cached_outputs = {}, False
        engine.process_request_outputs_callback = engine.tracer = None
        engine.log_stats, engine._processed = False, set()
        self.surgical.samples = engine.seq_id_to_seq_group
        self.engine = engine
        self.outputs: list[RequestOutput] = []

    def step(self, tokens: Callable[[Sampling], int]) -> list[str]:
        """Run one step; returns the ids of the scheduled groups."""
        context = self.context
        context.request_outputs.clear()
        metadata, outputs, _ = self.surgical.scheduler.schedule()
        for request_id in self.surgical.scheduler.get_and_reset_finished_requests_ids():
            self.surgical.samples.pop(request_id, None)
        context.seq_group_metadata_list = metadata
        # While the model runs, the previous step is processed.
        self._process()
        groups = [entry.seq_group for entry in outputs.scheduled_seq_groups]
        sampled = [_output(group, tokens(sampling_of(group))) for group in groups]
        context.append_output([sampled] if sampled else [], metadata, outputs, True, True, True)
        if sampled:
            self.engine._advance_to_next_step(sampled, metadata, outputs.scheduled_seq_groups)
        self.outputs += context.request_outputs
        return [group.request_id for group in groups]

    def run(self, tokens: Callable[[Sampling], int], max_steps: int = 80) -> None:
        """Step to the end; then check that the engine is empty."""
        for _ in range(max_steps):
            self.step(tokens)
            if not self.surgical.scheduler.has_unfinished_seqs():
                self._process()
                self.outputs += self.context.request_outputs
                self.surgical.assert_empty()
                return
        raise AssertionError(f"still unfinished: {self.surgical.statuses()}")

    def _process(self, request_id: str | None = None) -> None:
        self.engine._process_model_outputs(self.context, request_id=request_id)


def _output(group: SequenceGroup, token_id: int) -> CompletionSequenceGroupOutput:
    sample = SequenceOutput(group.first_seq.seq_id, token_id, {token_id: Logprob(-1.0, 1)})
    return CompletionSequenceGroupOutput(samples=[sample], prompt_logprobs=None)


def script(**texts: str) -> Callable[[Sampling], int]:
    """As `plan`, but after its end a sequence samples a token that is ignored."""

    def choose(sampling: Sampling) -> int:
        try:
            return plan(**texts)(sampling)
        except IndexError:
            return ord("?")

    return choose
