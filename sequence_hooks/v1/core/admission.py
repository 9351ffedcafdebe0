# SPDX-License-Identifier: Apache-2.0
"""The queue from which upstream admits the sequences of trees, and how they make room for other requests.

Upstream admits from this queue first, and from its own queue of new requests once this one is empty. This queue reports
that it is empty as soon as a new request goes before all sequences in it; upstream's loop asks again for each request
that it admits.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from sequence_hooks.admission.order import AdmissionOrder
from sequence_hooks.admission.policy import AdmissionPolicy
from sequence_hooks.admission.share import Key, Share
from sequence_hooks.v1.core.glue import Glue
from sequence_hooks.v1.core.sequence import V1Branch
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus


class TreeAdmission(RequestQueue):
    """The waiting sequences of trees, and before them the requests that upstream itself keeps in this queue.

    Args:
        others: Upstream's own queue, for requests that have no tree.
        new: Upstream's queue of new requests.
        branches: The branches of the unfinished requests in trees, by request id.
        glue: Glue and its owners, by the id of the glue request.
        forked: The ids of the requests that have forks, whose KV they get when they are admitted.
        has_priorities: Whether upstream's scheduler has an order of priority.
    """

    def __init__(
        self,
        others: RequestQueue,
        new: RequestQueue,
        branches: Mapping[str, V1Branch],
        glue: Mapping[str, Glue],
        forked: Collection[str],
        pool: BlockPool,
        has_priorities: bool,
    ) -> None:
        self.others = others
        self._new, self._branches, self._glue, self._forked, self._pool = new, branches, glue, forked, pool
        self._has_priorities = has_priorities
        self.order = AdmissionOrder[Request](self._priority)
        self._policy = AdmissionPolicy(self.order, goes_by_age=True)
        self.shortage = self._policy.shortage
        self._is_paused = False
        self._loaded: dict[Request, None] = {}
        """The sequences of trees for which a connector loads KV, or has loaded it, until they give it up. While they
        wait nobody can take their blocks, so they go before all others."""

    def begin_step(
        self, is_paused: bool, num_rows: int, num_free: int, num_others: int, num_deferred: int
    ) -> Iterator[Request]:
        """Divide the rows for a step.

        Args:
            is_paused: Whether upstream admits no new request.
            num_rows: How many sequences may run.
            num_free: How many of these rows are free.
            num_others: How many requests have no tree.
            num_deferred: How many new requests wait for something other than a row.

        Returns:
            The children to preempt before the step, each chosen once the ones before it have been preempted.
        """
        self._is_paused = is_paused
        new = self._next_new
        is_tight = 2 * self._pool.get_num_free_blocks() < self._pool.num_gpu_blocks
        self._policy.begin_step(new, num_rows, num_others, is_tight)
        num_new = max(len(self._new) - num_deferred, 0)
        return self._policy.victims(new, 0 if new is None else self._priority(new), num_new, num_free)

    def begin_tree(self, branch: V1Branch, request: Request) -> None:
        """Add the tree of a request that runs, or that was preempted while its hook token was in flight."""
        if request.status == RequestStatus.RUNNING:
            self.order.start(branch, request)
        else:
            self.take_from_new(request)

    def take_from_new(self, request: Request) -> None:
        """Move a sequence of a tree, which upstream has preempted, from upstream's queue into this one."""
        self._new.remove_request(request)
        self.prepend_request(request)

    def leave(self, request: Request) -> None:
        """Note that a sequence of a tree neither runs nor waits to be admitted."""
        self.order.stop(request)
        self._remove(request)

    def note_shortage(self, running: list[Request], request: Request) -> None:
        """Note that there are too few blocks for a request.

        For a running request, upstream preempts the last one ``running``: the best one to preempt is moved there.
        """
        self.shortage.note()
        if request.status == RequestStatus.RUNNING and not self._has_priorities:
            victim = self._policy.better_victim(running, request)
            if victim is not None:
                running.remove(victim)
                running.append(victim)

    def __bool__(self) -> bool:
        """Whether upstream is to admit from this queue next."""
        is_first = bool(self.others) or self._first_loaded is not None
        return is_first or (bool(self.order) and self.order.goes_before(self._key_of_new))

    def __len__(self) -> int:
        return len(self.others) + len(self.order)

    def __iter__(self) -> Iterator[Request]:
        return chain(self.others, self.order)

    def peek_request(self) -> Request:
        return self.others.peek_request() if self.others else self._head()

    def pop_request(self) -> Request:
        if self.others:
            return self.others.pop_request()
        request = self._head()
        branch = self._branch_of(request)
        if branch is not None and branch.sequence.request is request:
            self.order.start(branch, request)
        else:
            # Glue runs for its owner.
            self.order.remove(request)
        return request

    def add_request(self, request: Request) -> None:
        branch = self._branch_of(request)
        if branch is None:
            self.others.add_request(request)
        else:
            self.order.append(branch, request)

    def prepend_request(self, request: Request) -> None:
        branch = self._branch_of(request)
        if branch is None:
            self.others.prepend_request(request)
        elif self._is_loading(request):
            self.order.appendleft(branch, request)
            self._loaded[request] = None
        elif self._has_kv(request):
            self.order.appendleft(branch, request)
        else:
            self._loaded.pop(request, None)
            self.order.put_back(branch, request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """As upstream, in reverse order."""
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: Request) -> None:
        if request in self.order:
            self._remove(request)
        else:
            self.others.remove_request(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        left = []
        for request in requests:
            if request in self.order:
                self._remove(request)
            else:
                left.append(request)
        if left and self.others:
            self.others.remove_requests(left)

    def _remove(self, request: Request) -> None:
        self._loaded.pop(request, None)
        self.order.remove(request)

    @property
    def _first_loaded(self) -> Request | None:
        """The first of those that wait, and whose trees may have one more running child if they are children."""
        return next(filter(self._may_run, self._loaded), None)

    def _may_run(self, request: Request) -> bool:
        branch = self._branch_of(request)
        has_room = branch is None or branch.parent is None or self.order.child_room(branch) != 0
        return has_room and request in self.order

    @property
    def _next_new(self) -> Request | None:
        """The new request that upstream would admit next; None if it would admit none."""
        return self._new.peek_request() if self._new and not self._is_paused else None

    @property
    def _key_of_new(self) -> Key | None:
        """The key of that request; None if there is none, or if trees go first."""
        new, shortage = self._next_new, self.shortage
        if new is None or (shortage.is_recent and not shortage.is_urgent):
            return None
        return self._priority(new), 0, 0, -1 if shortage.is_urgent else self.order.num_arrived - len(self._new)

    def _priority(self, request: Request) -> int:
        return request.priority if self._has_priorities else 0

    def _is_loading(self, request: Request) -> bool:
        return request.status == RequestStatus.WAITING_FOR_REMOTE_KVS

    def _has_kv(self, request: Request) -> bool:
        return bool(request.num_computed_tokens) or request.request_id in self._forked

    def _branch_of(self, request: Request) -> V1Branch | None:
        """The branch of a request, or of the owner of glue; None for a request that no hook has touched."""
        glue = self._glue.get(request.request_id)
        return self._branches.get(request.request_id if glue is None else glue.owner.request_id)

    def _head(self) -> Request:
        loaded = self._first_loaded
        if loaded is not None:
            return loaded
        first: Share[Request] | None = self.order.first()
        head = None if first is None else first.head
        if head is None:
            raise IndexError("no sequence of a tree may be admitted")
        return head
