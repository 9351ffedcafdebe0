# SPDX-License-Identifier: Apache-2.0
"""The data of a sequence that tokens were merged into: which of them it has sampled, and which are only context.

Upstream takes every output token for a sampled one: in limits, stop strings, penalties and for logits
processors. Here those see what the sequence sampled itself; merged tokens count like its prompt.
"""

from array import array
from collections.abc import Sequence as Ids
from typing import Any

from vllm.sequence import SequenceData


class MergedSequenceData(SequenceData):
    """Upstream's `SequenceData` of a sequence with merged tokens. The sampler and logits processors read

    - ``output_token_ids``, ``output_token_ids_array``: what the sequence sampled itself;
    - ``prompt_token_ids_array``: its prompt and what was merged, for penalties.

    Lengths, positions and `get_output_token_ids` are those of all tokens, as ever.
    """

    # After fields with defaults, these need one too; `of` sets both.
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

    def forget_context(self, context: Any) -> None:
        """Keep ``context``, which only has a length, instead of the prompt and what was merged."""
        self._context = context

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
        """Output tokens that the sequence has not sampled itself."""
        return self.get_output_len() - len(self._sampled)
