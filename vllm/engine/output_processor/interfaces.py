# SPDX-License-Identifier: Apache-2.0
"""Upstream's factory of output processors, which knows one more."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm._overlay import fall_back_to
from vllm._upstream.engine.output_processor import interfaces as upstream
from vllm.config import SchedulerConfig, SpecialKwargs
from vllm.core.scheduler import Scheduler
from vllm.engine.output_processor.stop_checker import StopChecker
from vllm.sequence import Sequence
from vllm.transformers_utils.detokenizer import Detokenizer
from vllm.transformers_utils.tokenizer import AnyTokenizer
from vllm.utils import Counter

if TYPE_CHECKING:
    from vllm.engine.output_processor.sequence_hook import EngineFacts


class SequenceGroupOutputProcessor(upstream.SequenceGroupOutputProcessor):
    """Upstream's interface; see `create_output_processor`."""

    @staticmethod
    def create_output_processor(
        scheduler_config: SchedulerConfig,
        detokenizer: Detokenizer | None,
        scheduler: list[Scheduler],
        seq_counter: Counter,
        get_tokenizer_for_seq: Callable[[Sequence], AnyTokenizer],
        stop_checker: StopChecker,
        special_kwargs: SpecialKwargs | None = None,
        facts: "EngineFacts | None" = None,
    ) -> upstream.SequenceGroupOutputProcessor:
        """The processor for a configuration: without ``special_kwargs`` exactly upstream's choice.

        Args:
            facts: What hooks need to know of the engine, beside these; nothing is known by default.

        Raises:
            ValueError: hooks, and a detokenizer or a scheduler that cannot carry them.
        """
        if special_kwargs is None:
            return upstream.SequenceGroupOutputProcessor.create_output_processor(
                scheduler_config, detokenizer, scheduler, seq_counter, get_tokenizer_for_seq, stop_checker
            )
        # Imported here, as upstream does: the processors import this module.
        from vllm.engine.output_processor.sequence_hook import EngineFacts, SequenceHookOutputProcessor

        return SequenceHookOutputProcessor(
            scheduler_config,
            detokenizer,
            scheduler,
            seq_counter,
            stop_checker,
            special_kwargs,
            facts or EngineFacts(),
        )


__getattr__ = fall_back_to("vllm._upstream.engine.output_processor.interfaces")
