# SPDX-License-Identifier: Apache-2.0
"""What an operator reads in the log when a request does not get all it could: at most one line per request, however
many promises, children or samples it has."""

import logging
from collections import OrderedDict
from collections.abc import Callable

from sequence_hooks.text.messages import describe_error, printable
from sequence_hooks.tree.ids import root_id
from sequence_hooks.tree.rules import Merge, Refusal

_MAX_REQUESTS = 4096


class OncePerRequest:
    """Remembers the latest few thousand requests that something was logged about.

    Args:
        request_of: Returns the id of the request that a sequence belongs to, given the sequence's own id.
    """

    def __init__(self, request_of: Callable[[str], str] = root_id) -> None:
        self._request_of = request_of
        self._request_ids: OrderedDict[str, None] = OrderedDict()

    def is_first(self, request_id: str) -> bool:
        """Whether nothing has been logged yet about a sequence's request; from now on, something has."""
        name = self._request_of(request_id)
        if name in self._request_ids:
            return False
        self._request_ids[name] = None
        if len(self._request_ids) > _MAX_REQUESTS:
            self._request_ids.popitem(last=False)
        return True

    def forget(self, request_id: str) -> None:
        """Forget ``request_id``, because a new request uses it."""
        self._request_ids.pop(request_id, None)


class HookLog:
    """Logs refused hook tokens, faults of handlers, and incomplete joins. Ids come from clients, so they are escaped.

    Args:
        logger: The engine's.
    """

    def __init__(self, logger: logging.Logger, logged_requests: OncePerRequest) -> None:
        self._logger = logger
        self._logged_requests = logged_requests
        self._failed_tokens: set[int] = set()
        """Hook tokens whose handlers have failed."""

    def refused(self, request_id: str, token_id: int, refusal: Refusal) -> None:
        """A hook token of a sequence counts as an ordinary one."""
        if refusal.error is not None:
            self.failed(request_id, token_id, refusal.error)
        # The client chose the length of its prompt, so one line is enough.
        elif refusal.reason == "max_model_len":
            self._once(logging.WARNING, request_id, "no room for a child in the model's length")
        elif refusal.reason == "max_tree_sequences":
            self._once(logging.INFO, request_id, "max_tree_sequences is reached, and its tree spawns no more children")
        elif refusal.reason == "wait_for":
            says = "token %d names a child that is not there, or joined already, and waits for nothing"
            self._once(logging.INFO, request_id, says, token_id)

    def used_up(self, request_id: str) -> None:
        """The tree of a sequence may sample no more tokens."""
        self._once(logging.INFO, request_id, "max_tree_tokens is used up, and all sequences of its tree end")

    def failed(self, request_id: str, token_id: int, error: BaseException) -> None:
        """The hook of a token has failed; its traceback is logged for its first failure only."""
        if self._logged_requests.is_first(request_id):
            info = None if token_id in self._failed_tokens else error
            self._failed_tokens.add(token_id)
            self._logger.error(
                "%s: token %d spawns and blocks nothing, its hook failed: %s",
                printable(request_id),
                token_id,
                describe_error(error),
                exc_info=info,
            )

    def waits(self, request_id: str, num_output: int) -> None:
        """A sequence waits for its caller, after ``num_output`` tokens."""
        self._logger.info("%s: waits for its caller after %d tokens", printable(request_id), num_output)

    def joined(self, request_id: str, merge: Merge) -> None:
        """A sequence was joined; nothing is logged if nothing is missing."""
        if merge.num_cut:
            says = "%d merged tokens are cut to fit the model's length"
            self._once(logging.WARNING, request_id, says, merge.num_cut)
        self.assembled(request_id, merge.error)

    def assembled(self, request_id: str, error: str | None) -> None:
        """The results of children were put together; ``error`` is that of a join function, if any."""
        if error is not None:
            says = "a join function failed, and nothing is merged for its children: %s"
            self._once(logging.ERROR, request_id, says, error)

    def _once(self, level: int, request_id: str, says: str, *values: object) -> None:
        """Log about a sequence, unless something was logged about its request before."""
        if self._logged_requests.is_first(request_id):
            self._logger.log(level, f"%s: {says}", printable(request_id), *values)
