# SPDX-License-Identifier: Apache-2.0
"""The queue from which upstream admits the sequences of trees, and how they make room for other requests.

Upstream asks it before its own queue of new requests, and goes on to those when it is empty. It says that it is empty
as soon as a new request goes before all that wait in it; upstream's loop asks again for each request that it admits.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from sequence_hooks.admission.order import AdmissionOrder
from sequence_hooks.admission.share import Key, Share
from sequence_hooks.v1.core.sequence import V1Branch
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

FirstNew = Callable[[], Key | None]
"""The key of the new request that upstream would admit next; None if it would admit none."""


class TreeAdmission(RequestQueue):
    """The waiting sequences of trees, and before them what upstream itself keeps in this place.

    Args:
        others: Upstream's own queue, for requests that have no tree.
        branch_of: The branch of a sequence of a tree, or of the owner of glue; None of any other request.
        has_kv: Whether a sequence of a tree has, or shares, any KV.
        first_new: See `FirstNew`.
    """

    def __init__(
        self,
        others: RequestQueue,
        order: AdmissionOrder[Request],
        branch_of: Callable[[Request], V1Branch | None],
        has_kv: Callable[[Request], bool],
        first_new: FirstNew,
    ) -> None:
        self.others = others
        self._order = order
        self._branch_of = branch_of
        self._has_kv = has_kv
        self._first_new = first_new

    def __bool__(self) -> bool:
        """Whether upstream is to admit from this queue next."""
        return bool(self.others) or self._order.goes_before(self._first_new())

    def __len__(self) -> int:
        return len(self.others) + len(self._order)

    def __iter__(self) -> Iterator[Request]:
        return chain(self.others, self._order)

    def peek_request(self) -> Request:
        return self.others.peek_request() if self.others else self._head()

    def pop_request(self) -> Request:
        if self.others:
            return self.others.pop_request()
        request = self._head()
        branch = self._branch_of(request)
        if branch is not None and branch.sequence.request is request:
            self._order.start(branch, request)
        else:
            # Glue runs for its owner.
            self._order.remove(request)
        return request

    def add_request(self, request: Request) -> None:
        branch = self._branch_of(request)
        if branch is None:
            self.others.add_request(request)
        else:
            self._order.append(branch, request)

    def prepend_request(self, request: Request) -> None:
        branch = self._branch_of(request)
        if branch is None:
            self.others.prepend_request(request)
        elif self._has_kv(request):
            self._order.appendleft(branch, request)
        else:
            self._order.put_back(branch, request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """As upstream, in reverse order."""
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: Request) -> None:
        if request in self._order:
            self._order.remove(request)
        else:
            self.others.remove_request(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        left = []
        for request in requests:
            if request in self._order:
                self._order.remove(request)
            else:
                left.append(request)
        if left and self.others:
            self.others.remove_requests(left)

    def _head(self) -> Request:
        first: Share[Request] | None = self._order.first()
        head = None if first is None else first.head
        if head is None:
            raise IndexError("no sequence of a tree may be admitted")
        return head
