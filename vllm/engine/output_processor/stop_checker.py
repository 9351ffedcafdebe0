# SPDX-License-Identifier: Apache-2.0
"""Upstream's stop checker, which also ends a sequence whose logits processor has failed."""

import re
from collections.abc import Callable

from sequence_hooks.text.messages import printable
from sequence_hooks.tree.ids import root_id
from sequence_hooks.tree.log import OncePerRequest
from vllm._overlay import fall_back_to
from vllm._upstream.engine.output_processor import stop_checker as upstream
from vllm.engine.guard import fault_of
from vllm.logger import init_logger
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.sequence import Sequence, SequenceStatus
from vllm.transformers_utils.tokenizer import AnyTokenizer

logger = init_logger(__name__)

_SAMPLE = re.compile(r"_parallel_sample_\d+$")
"""The suffix that the id of a sample (n > 1) adds to its request's."""


class StopChecker(upstream.StopChecker):
    """Upstream's `StopChecker`."""

    def __init__(self, max_model_len: int, get_tokenizer_for_seq: Callable[[Sequence], AnyTokenizer]) -> None:
        super().__init__(max_model_len, get_tokenizer_for_seq)
        self.logged_requests = OncePerRequest(request_of)

    def maybe_stop_sequence(
        self,
        seq: Sequence,
        new_char_count: int,
        sampling_params: SamplingParams,
        lora_req: LoRARequest | None = None,
    ) -> None:
        """Upstream's `maybe_stop_sequence`, which also ends a sequence whose logits processor has failed."""
        failed = fault_of(sampling_params)
        if failed is None:
            super().maybe_stop_sequence(seq, new_char_count, sampling_params, lora_req)
            return
        if self.logged_requests.is_first(failed.request_id):
            name = printable(request_of(failed.request_id))
            logger.warning("%s: a logits processor failed, and its sequence ends: %s", name, failed.fault)
        # The last token was not the model's choice, so its text is dropped.
        seq.output_text = seq.output_text[: len(seq.output_text) - new_char_count]
        seq.status = self.status_of_failed(seq)

    def status_of_failed(self, seq: Sequence) -> SequenceStatus:
        """The status of a sequence whose logits processor has failed."""
        return SequenceStatus.FINISHED_ABORTED


def request_of(request_id: str) -> str:
    """The id of the request that a sequence belongs to, as a sample or as a child."""
    return _SAMPLE.sub("", root_id(request_id), count=1)


__getattr__ = fall_back_to("vllm._upstream.engine.output_processor.stop_checker")
