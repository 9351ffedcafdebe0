# SPDX-License-Identifier: Apache-2.0
"""Which group goes first: by arrival or, with ``scheduling_policy="priority"``, by priority.

A child has its request's priority, so a whole tree has one. As in upstream, a lower number is more urgent.
"""

from collections.abc import Iterable

from vllm.core.hooked_sequence import root_group
from vllm.sequence import SequenceGroup

Rank = tuple[int, float, int]
"""The rank of a tree: its priority, when its request arrived, and a number to distinguish simultaneous arrivals."""


class PriorityOrder:
    """The order of sequence groups under one scheduling policy: their priorities, which "fcfs" takes to be equal."""

    def __init__(self, policy: str) -> None:
        self.differs = policy == "priority"
        """Whether one group can go before another that arrived first."""

    def priority(self, group: SequenceGroup) -> int:
        """The priority of ``group``, 0 under "fcfs"; a lower number goes first."""
        return group.priority if self.differs else 0

    def rank(self, group: SequenceGroup) -> Rank:
        """The rank of the tree that ``group`` belongs to: the same for all of its sequences."""
        root = root_group(group)
        return self.priority(group), root.arrival_time, root.first_seq.seq_id

    def sorted(self, groups: Iterable[SequenceGroup]) -> list[SequenceGroup]:
        """The most urgent first; those that are equally urgent keep their order."""
        return sorted(groups, key=self.priority)
