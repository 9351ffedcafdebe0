# SPDX-License-Identifier: Apache-2.0
"""Stops a sequence with merged tokens at what it sampled itself, and at the model's length."""

import copy

from sequence_hooks.tree import rules
from vllm.core.hooked_sequence import branch_of_seq
from vllm.core.sequence_data import MergedSequenceData
from vllm.engine.output_processor.stop_checker import StopChecker
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.sequence import Sequence, SequenceStatus


class HookStopChecker(StopChecker):
    """Upstream's stop checker, for which merged tokens neither count nor stop a sequence.

    ``max_tokens`` and ``min_tokens`` count sampled tokens. A stop string has to begin after the last merged
    token: one that a child began and its parent completes does not stop the parent.
    """

    @classmethod
    def in_place_of(cls, checker: StopChecker) -> "HookStopChecker":
        """A checker for the same model."""
        return cls(checker._max_model_len, checker.get_tokenizer_for_seq)

    def max_len(self, lora_request: LoRARequest | None) -> int:
        """The most tokens that a context may have with this adapter."""
        return self._get_max_model_len(lora_request)

    def maybe_stop_sequence(
        self,
        seq: Sequence,
        new_char_count: int,
        sampling_params: SamplingParams,
        lora_req: LoRARequest | None = None,
    ) -> None:
        """Set the status of ``seq`` if its last token, sampled just now, ends it."""
        self._stop_by_params(seq, new_char_count, sampling_params, lora_req)
        # Upstream checks no limit before min_tokens, and a child or a parent with merged tokens may lack room for them.
        branch, max_len = branch_of_seq(seq), self.max_len(lora_req)
        has_room = seq.get_len() < max_len
        if branch is not None:
            branch.count_sampled()
            has_room = rules.has_room(branch, seq.get_len(), max_len)
        if not seq.is_finished() and not has_room:
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
        """Aborted; a sequence with unjoined children stops instead, as an aborted one would not wait to join them."""
        branch = branch_of_seq(seq)
        if branch is not None and branch.must_wait_at_end:
            return SequenceStatus.FINISHED_STOPPED
        return super().status_of_failed(seq)


def _moved_on(params: SamplingParams, num_merged: int) -> SamplingParams:
    """``params`` with limits that apply to the length of the whole output."""
    moved = copy.copy(params)
    if moved.max_tokens is not None:
        moved.max_tokens += num_merged
    moved.min_tokens += num_merged
    return moved
