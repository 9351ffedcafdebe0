# SPDX-License-Identifier: Apache-2.0
"""What is logged once a request, however many promises, children or samples have it."""

import re
from collections import OrderedDict

_MOST = 4096
_OF_A_SEQUENCE = re.compile(r"(_parallel_sample_\d+)?(_child_\d+)*$")
"""What the ids of samples (n > 1) and children have after their request's."""


class ToldOnce:
    """What was logged about the latest few thousand requests, by topic."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, set[str]] = OrderedDict()

    def is_first(self, request_id: str, topic: str) -> bool:
        """Whether nothing on this topic was logged yet for the request of a sequence; from now on it was."""
        topics = self._told.setdefault(request_of(request_id), set())
        if topic in topics:
            return False
        topics.add(topic)
        if len(self._told) > _MOST:
            self._told.popitem(last=False)
        return True

    def forget(self, request_id: str) -> None:
        """Another request has this id from now on."""
        self._told.pop(request_id, None)


def request_of(request_id: str) -> str:
    """The request's id that a sequence's is derived from."""
    return _OF_A_SEQUENCE.sub("", request_id, count=1)
