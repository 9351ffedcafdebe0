# SPDX-License-Identifier: Apache-2.0
"""Upstream's factory of output processors, and the processor for sequence hooks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm._overlay import fall_back_to
from vllm._upstream.engine.output_processor import interfaces as upstream
from vllm.config import SchedulerConfig, SpecialKwargs
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
        scheduler: list[Any],
        seq_counter: Counter,
        get_tokenizer_for_seq: Callable[[Sequence], AnyTokenizer],
        stop_checker: StopChecker,
        special_kwargs: SpecialKwargs | None = None,
        facts: "EngineFacts | None" = None,
    ) -> upstream.SequenceGroupOutputProcessor:
        """The processor for a configuration: without ``special_kwargs`` exactly upstream's choice.

        Args:
            facts: What else hooks need to know about the engine; by default nothing is known.

        Raises:
            ValueError: the hooks have a merge separator, and there is no detokenizer.
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
