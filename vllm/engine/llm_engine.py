# SPDX-License-Identifier: Apache-2.0
"""Upstream's V0 engine, whose output processor knows the sequence hooks if there are any."""

from typing import Any

from vllm._overlay import fall_back_to
from vllm._upstream.engine import llm_engine as upstream
from vllm.config import VllmConfig
from vllm.engine.output_processor.interfaces import SequenceGroupOutputProcessor


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
            )


__getattr__ = fall_back_to("vllm._upstream.engine.llm_engine")
