# SPDX-License-Identifier: Apache-2.0
"""Which token each group of a surgical engine of V0 samples."""

from collections.abc import Callable, Mapping

from mytests.characters import token_of
from vllm.core.hooked_sequence import branch_of
from vllm.sequence import SequenceGroup

Tokens = Mapping[str, int] | Callable[[SequenceGroup], int]


def plan(**texts: str) -> Callable[[SequenceGroup], int]:
    """Tokens from texts by request id: each group samples the next character of its text.

    See `token_of` for what a text may have.
    """
    return lambda group: token_of(texts[group.request_id], num_sampled(group))


def num_sampled(group: SequenceGroup) -> int:
    """The number of output tokens that the group sampled itself."""
    branch = branch_of(group)
    merged = 0 if branch is None else sum(segment.end - segment.start for segment in branch.merged)
    return group.first_seq.get_output_len() - merged


def child_of(group: SequenceGroup, index: int = 0) -> SequenceGroup:
    """The group of a child, by spawn order."""
    branch = branch_of(group)
    assert branch is not None
    return branch.children[index].sequence.group
