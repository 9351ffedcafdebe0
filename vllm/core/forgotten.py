# SPDX-License-Identifier: Apache-2.0
"""What is kept of a joined child's sequence: its output, and the length of its context.

A tree lives as long as its request. If each child kept its whole context, a request with many children would hold as
many copies of its own.
"""

from collections.abc import Sequence as Ids
from typing import NoReturn

from vllm.core.hooked_sequence import V0Branch
from vllm.core.merged_data import MergedSequenceData
from vllm.sequence import Sequence


class Forgotten(Ids[int]):
    """Token ids of which only the number is known."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: object) -> NoReturn:
        """Raise a `LookupError`, whatever the index."""
        raise LookupError(f"the context of {self._length} tokens is not kept: its sequence has been joined")


def forget_joined(parent: V0Branch) -> None:
    """Drop the contexts of joined children, and of all below them. Their outputs were made when they were joined."""
    for branch in parent.take_forgettable():
        _forget_context(branch.sequence.seq)


def _forget_context(seq: Sequence) -> None:
    """Drop the context, the logprobs and the tokens' texts of a finished sequence."""
    data, context = seq.data, Forgotten(seq.get_prompt_len())
    data._prompt_token_ids = data._prompt_token_ids_tuple = context
    data._cached_all_token_ids = list(data._output_token_ids)
    if isinstance(data, MergedSequenceData):
        data.forget_context(context)
    seq.inputs = {**seq.inputs, "prompt": None, "prompt_token_ids": context}
    seq.output_logprobs = []
    seq.tokens = None
