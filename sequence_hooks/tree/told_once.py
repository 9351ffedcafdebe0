# SPDX-License-Identifier: Apache-2.0
"""Limits the log to one line per request, however many promises, children or samples it has."""

from collections import OrderedDict
from collections.abc import Callable

from sequence_hooks.tree.ids import root_id

_MOST = 4096


class ToldOnce:
    """Remembers the latest few thousand requests that something was logged about.

    Args:
        request_of: Returns the id of the request that a sequence belongs to, given the sequence's own id.
    """

    def __init__(self, request_of: Callable[[str], str] = root_id) -> None:
        self._request_of = request_of
        self._told: OrderedDict[str, None] = OrderedDict()

    def is_first(self, request_id: str) -> bool:
        """Whether nothing has been logged yet about a sequence's request; from now on, something has."""
        name = self._request_of(request_id)
        if name in self._told:
            return False
        self._told[name] = None
        if len(self._told) > _MOST:
            self._told.popitem(last=False)
        return True

    def forget(self, request_id: str) -> None:
        """Forget ``request_id``, because a new request uses it."""
        self._told.pop(request_id, None)
