# SPDX-License-Identifier: Apache-2.0
"""Upstream's V0 engine, whose output processor knows the sequence hooks if there are any."""

from collections.abc import Sequence as Ids
from typing import Any

from vllm._overlay import fall_back_to
from vllm._upstream.engine import llm_engine as upstream
from vllm.config import VllmConfig
from vllm.engine.output_processor.interfaces import SequenceGroupOutputProcessor
from vllm.engine.output_processor.sequence_hook import EngineFacts, SequenceHookOutputProcessor
from vllm.sampling_params import SamplingParams
from vllm.sequence import Sequence


class LLMEngine(upstream.LLMEngine):
    """Upstream's `LLMEngine`; ``vllm_config.special_kwargs`` switches sequence hooks on."""

    output_processor: SequenceGroupOutputProcessor

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
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

    def resume_sequence(self, request_id: str, text_or_token_ids: str | Ids[int] | None = None) -> None:
        """Let a sequence go on that waits at its sync token, with ``sync_resume="manual"``.

        It resumes once its children have finished too: with their results, and behind them what is given
        here, tokenized without special tokens where it is a text.

        Args:
            request_id: Of the sequence: the request's, or a child's. See `sequences_awaiting_resume`.
            text_or_token_ids: What to append, a tool's answer for one; nothing by default.

        Raises:
            ValueError: no such sequence waits, or an id is not in the vocabulary.
        """
        self._hooks().resume(request_id, text_or_token_ids)

    def sequences_awaiting_resume(self) -> list[str]:
        """The request ids of the sequences that go on only after `resume_sequence`, in the order they wait."""
        return [branch.seq_group.request_id for branch in self._hooks().awaiting_resume()]

    def is_waiting_for_callers(self, virtual_engine: int = 0) -> bool:
        """Whether steps do nothing until a sequence is resumed, or a request comes in."""
        hooks_on = self.vllm_config.special_kwargs is not None
        return hooks_on and self.scheduler[virtual_engine].is_waiting_for_callers()

    def _hooks(self) -> SequenceHookOutputProcessor:
        if not isinstance(self.output_processor, SequenceHookOutputProcessor):
            raise ValueError('special_kwargs is None, so no sequence waits; set it, with sync_resume="manual"')
        return self.output_processor

    def _complete_params(self, params: SamplingParams, seq: Sequence) -> SamplingParams:
        """What upstream does to the parameters of a new request."""
        params = self._build_logits_processors(params, seq.lora_request)
        params.update_from_generation_config(self.generation_config_fields, seq.eos_token_id)
        return params


__getattr__ = fall_back_to("vllm._upstream.engine.llm_engine")
