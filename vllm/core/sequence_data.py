# SPDX-License-Identifier: Apache-2.0
"""The token ids of upstream's `SequenceData`: read without copies, continued, merged into, and released.

Only this module knows the private members of upstream's class. Upstream treats every output token as sampled: in
limits, stop strings, penalties and logits processors. With `MergedSequenceData` these see only what the sequence
sampled itself; merged tokens count as part of its prompt.
"""

from array import array
from collections.abc import Sequence as Ids
from typing import Any, NoReturn

from vllm.sequence import VLLM_TOKEN_ID_ARRAY_TYPE, Sequence, SequenceData


class MergedSequenceData(SequenceData):
    """Upstream's `SequenceData` of a sequence with merged tokens. The sampler and logits processors read

    - ``output_token_ids``, ``output_token_ids_array``: what the sequence sampled itself;
    - ``prompt_token_ids_array``: its prompt and what was merged, for penalties.

    Positions, `get_len` and `get_token_ids` are about the context, from which a join may have cut something.
    `get_output_len` and `get_output_token_ids` have all tokens.
    """

    # Fields after those with defaults need defaults too; `of` sets both.
    _sampled: array = None  # type: ignore[assignment]
    _context: array = None  # type: ignore[assignment]
    _num_replaced: int = 0
    """Output tokens that are not in the context."""

    @classmethod
    def of(cls, data: SequenceData) -> "MergedSequenceData":
        """``data`` itself if it is one; else a replacement, in which all output tokens count as sampled."""
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

    def cut_context(self, num_kept: int) -> None:
        """Cut the context to its first ``num_kept`` tokens; the output stays."""
        self._num_replaced += self.get_len() - num_kept
        del self._cached_all_token_ids[num_kept:]
        self._context = array(VLLM_TOKEN_ID_ARRAY_TYPE, self._cached_all_token_ids)

    def release_context(self, context: Any) -> None:
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

    def get_len(self) -> int:
        length: int = super().get_len()
        return length - self._num_replaced

    def get_last_token_id(self) -> int:
        return self._cached_all_token_ids[-1]

    @property
    def num_merged(self) -> int:
        """Output tokens that the sequence has not sampled itself."""
        return self.get_output_len() - len(self._sampled)


class WholeOutputSequence(Sequence):
    """Upstream's sequence whose context was cut: upstream takes the last tokens of an output from the context."""

    def get_output_token_ids_to_return(self, delta: bool) -> Ids[int] | int:
        start = self._last_output_token_ids_offset if delta else 0
        # This moves the offset.
        super().get_output_token_ids_to_return(delta)
        token_ids: Ids[int] = self.get_output_token_ids()
        return token_ids[start:]


def cut_context(seq: Sequence, num_kept: int) -> None:
    """Cut the context of a sequence to its first ``num_kept`` tokens; its output stays."""
    seq.data = MergedSequenceData.of(seq.data)
    seq.data.cut_context(num_kept)
    seq.__class__ = WholeOutputSequence


def take_back_last(seq: Sequence) -> None:
    """Undo the last `Sequence.append_token_id`, of whose token neither the worker nor a caller knows."""
    data = seq.data
    token_id = data._output_token_ids.pop()
    data._cached_all_token_ids.pop()
    data._new_appended_tokens.pop()
    if isinstance(data, MergedSequenceData):
        data.output_token_ids_array.pop()
    data._cumulative_logprob -= seq.output_logprobs.pop()[token_id].logprob


class ReleasedTokens(Ids[int]):
    """Token ids of which only the number is known."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: object) -> NoReturn:
        """Raise a `LookupError` for any index."""
        raise LookupError(f"the context of {self._length} tokens is not kept: its sequence has been joined")


def prompt_ids(data: SequenceData) -> Ids[int]:
    """The prompt's token ids; upstream's own property makes a copy."""
    return data._prompt_token_ids


def output_ids(data: SequenceData) -> Ids[int]:
    """The output's token ids; upstream's own property makes a copy."""
    return data._output_token_ids


def continued(data: SequenceData, num_shared: int, prefix_token_ids: Ids[int]) -> SequenceData:
    """New data whose prompt is the first ``num_shared`` tokens of ``data``, followed by the prefix.

    Upstream would make it from a list, and convert that into an array, a tuple and another list, token by token. Here
    each is copied from its counterpart, if a context is all of its output.
    """
    made = SequenceData(array(VLLM_TOKEN_ID_ARRAY_TYPE))
    if data.get_len() == data.get_prompt_len() + data.get_output_len():
        made._prompt_token_ids = (data._prompt_token_ids + data._output_token_ids)[:num_shared]
    else:
        made._prompt_token_ids = array(VLLM_TOKEN_ID_ARRAY_TYPE, data.get_token_ids()[:num_shared])
    made._prompt_token_ids.extend(prefix_token_ids)
    made._cached_all_token_ids = [*data.get_token_ids()[:num_shared], *prefix_token_ids]
    made._prompt_token_ids_tuple = tuple(made._cached_all_token_ids)
    return made


def release_context(data: Any) -> ReleasedTokens:
    """Drop the prompt of ``data``, and return what is left of it: its length."""
    context = ReleasedTokens(data.get_prompt_len())
    data._prompt_token_ids = data._prompt_token_ids_tuple = context
    data._cached_all_token_ids = list(data._output_token_ids)
    if isinstance(data, MergedSequenceData):
        data.release_context(context)
    return context
