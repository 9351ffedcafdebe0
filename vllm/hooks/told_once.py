# SPDX-License-Identifier: Apache-2.0
"""The log grows by at most a line a request, however many promises, children or samples it has."""

import re
from collections import OrderedDict

_MOST = 4096
_OF_A_SEQUENCE = re.compile(r"(_parallel_sample_\d+)?(_child_\d+)*$")
"""What the ids of samples (n > 1) and children have after their request's."""


class ToldOnce:
    """The latest few thousand requests that something was logged about."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, None] = OrderedDict()

    def is_first(self, request_id: str) -> bool:
        """Whether nothing was logged yet about the request of a sequence; from now on it was."""
        name = request_of(request_id)
        if name in self._told:
            return False
        self._told[name] = None
        if len(self._told) > _MOST:
            self._told.popitem(last=False)
        return True

    def forget(self, request_id: str) -> None:
        """Another request has this id from now on."""
        self._told.pop(request_id, None)


def request_of(request_id: str) -> str:
    """The request's id that a sequence's is derived from."""
    return _OF_A_SEQUENCE.sub("", request_id, count=1)
