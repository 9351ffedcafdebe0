# SPDX-License-Identifier: Apache-2.0
"""What counts as sampled once tokens were merged into a sequence, and what only as context.

Upstream takes every output token for a sampled one: in limits, stop strings, penalties and for logits
processors. Here those see what the sequence sampled itself; merged tokens count like its prompt.
"""

import copy
from array import array
from collections.abc import Sequence as Ids

from vllm.engine.output_processor.stop_checker import StopChecker
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.sequence import Sequence, SequenceData, SequenceStatus


class MergedSequenceData(SequenceData):
    """Upstream's `SequenceData` of a sequence with merged tokens. The sampler and logits processors read

    - ``output_token_ids``, ``output_token_ids_array``: what the sequence sampled itself;
    - ``prompt_token_ids_array``: its prompt and what was merged, for penalties.

    Lengths, positions and `get_output_token_ids` are those of all tokens, as ever.
    """

    # Behind fields with defaults, they need one; `of` gives both.
    _sampled: array = None  # type: ignore[assignment]
    _context: array = None  # type: ignore[assignment]

    @classmethod
    def of(cls, data: SequenceData) -> "MergedSequenceData":
        """``data`` itself if it is one, else what replaces it; all its output tokens are sampled ones."""
        if isinstance(data, cls):
            return data
        fields = {name: getattr(data, name) for name in data.__struct_fields__}
        return cls(**fields, _sampled=data._output_token_ids[:], _context=data._prompt_token_ids[:])

    def append_token_id(self, token_id: int, logprob: float, token_embed: None = None) -> None:
        super().append_token_id(token_id, logprob, token_embed)
        self._sampled.append(token_id)

    def extend_merged(self, token_ids: Ids[int]) -> None:
        """Append tokens that the sequence has not sampled; they add nothing to the cumulative logprob."""
        for tokens in (self._output_token_ids, self._new_appended_tokens, self._cached_all_token_ids, self._context):
            tokens.extend(token_ids)

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        return tuple(self._sampled)

    @property
    def output_token_ids_array(self) -> array:
        return self._sampled

    @property
    def prompt_token_ids_array(self) -> array:
        return self._context

    def get_output_token_ids(self) -> tuple[int, ...]:
        return tuple(self._output_token_ids)

    @property
    def num_merged(self) -> int:
        return self.get_output_len() - len(self._sampled)


class HookStopChecker(StopChecker):
    """Upstream's stop checker, for which merged tokens neither count nor stop.

    ``max_tokens`` and ``min_tokens`` are of sampled tokens, and a stop string has to lie behind what was
    merged last: one that a sequence completes, but a child began, is none.
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
        merged_text = seq.output_text[: seq.branch.merged_text_end]
        seq.output_text = seq.output_text[len(merged_text) :]
        limits = _moved_on(sampling_params, seq.data.num_merged)
        super().maybe_stop_sequence(seq, new_char_count, limits, lora_req)
        seq.output_text = merged_text + seq.output_text

    def status_of_failed(self, seq: Sequence) -> SequenceStatus:
        """Aborted ones wait for nobody; who has children joins them, and then ends as if it had stopped."""
        branch = getattr(seq, "branch", None)
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
