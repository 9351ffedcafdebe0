# SPDX-License-Identifier: Apache-2.0
"""What stops a sequence that tokens were merged into: what it sampled itself, and the model's length."""

import copy

from vllm.core.hooked_sequence import branch_of_seq
from vllm.core.merged_data import MergedSequenceData
from vllm.engine.output_processor.stop_checker import StopChecker
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.sequence import Sequence, SequenceStatus


class HookStopChecker(StopChecker):
    """Upstream's stop checker, for which merged tokens neither count nor stop.

    ``max_tokens`` and ``min_tokens`` count sampled tokens. A stop string has to begin after what was merged
    last: one that a child began and its parent completes does not stop the parent.
    """

    def maybe_stop_sequence(
        self,
        seq: Sequence,
        new_char_count: int,
        sampling_params: SamplingParams,
        lora_req: LoRARequest | None = None,
    ) -> None:
        """Set the status of ``seq`` if its last token, sampled just now, ends it."""
        self._stop_by_params(seq, new_char_count, sampling_params, lora_req)
        # Upstream looks at no limit before min_tokens, and a child or a parent with merged tokens may lack the room.
        if not seq.is_finished() and seq.get_len() >= self._get_max_model_len(lora_req):
            seq.status = SequenceStatus.FINISHED_LENGTH_CAPPED

    def _stop_by_params(
        self, seq: Sequence, new_char_count: int, sampling_params: SamplingParams, lora_req: LoRARequest | None
    ) -> None:
        if not isinstance(seq.data, MergedSequenceData):
            super().maybe_stop_sequence(seq, new_char_count, sampling_params, lora_req)
            return
        branch = branch_of_seq(seq)
        assert branch is not None
        merged_text = seq.output_text[: branch.sequence.merged_text_end]
        seq.output_text = seq.output_text[len(merged_text) :]
        limits = _moved_on(sampling_params, seq.data.num_merged)
        super().maybe_stop_sequence(seq, new_char_count, limits, lora_req)
        seq.output_text = merged_text + seq.output_text

    def status_of_failed(self, seq: Sequence) -> SequenceStatus:
        """An aborted sequence waits for nothing; one with children joins them, and then ends as if it had stopped."""
        branch = branch_of_seq(seq)
        if branch is not None and branch.unjoined:
            return SequenceStatus.FINISHED_STOPPED
        return super().status_of_failed(seq)


def _moved_on(params: SamplingParams, num_merged: int) -> SamplingParams:
    """``params`` with limits that fit the length of the whole output."""
    moved = copy.copy(params)
    if moved.max_tokens is not None:
        moved.max_tokens += num_merged
    moved.min_tokens += num_merged
    return moved
