# SPDX-License-Identifier: Apache-2.0
"""What the tests ask of a group of V0: what it samples next, and its children."""

from mytests.stepped import Sampling
from vllm.core.hooked_sequence import branch_of
from vllm.sequence import SequenceGroup


def sampling_of(group: SequenceGroup) -> Sampling:
    """A group at the time when it samples its next token."""
    branch = branch_of(group)
    num_sampled = group.first_seq.get_output_len() if branch is None else branch.num_sampled
    return Sampling(group.request_id, num_sampled)


def child_of(group: SequenceGroup, index: int = 0) -> SequenceGroup:
    """The group of a child, by spawn order."""
    branch = branch_of(group)
    assert branch is not None
    return branch.children[index].sequence.group
