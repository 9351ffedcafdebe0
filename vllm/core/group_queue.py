# SPDX-License-Identifier: Apache-2.0
"""A queue of sequence groups from which any group is removed in O(1), whatever its position."""

from collections import OrderedDict
from collections.abc import Iterator

from vllm.sequence import SequenceGroup


class GroupQueue:
    """An ordered queue of unique groups. Everything takes O(1)."""

    def __init__(self) -> None:
        self._groups: OrderedDict[SequenceGroup, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group: SequenceGroup) -> bool:
        return group in self._groups

    def __iter__(self) -> Iterator[SequenceGroup]:
        return iter(self._groups)

    def __reversed__(self) -> Iterator[SequenceGroup]:
        return reversed(self._groups)

    def append(self, group: SequenceGroup) -> None:
        """Put ``group`` after all others."""
        self._groups[group] = None

    def remove(self, group: SequenceGroup) -> None:
        """Remove ``group``.

        Raises:
            KeyError: ``group`` is not in the queue.
        """
        del self._groups[group]
