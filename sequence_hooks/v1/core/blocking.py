# SPDX-License-Identifier: Apache-2.0
"""Upstream's scheduler, in which requests can be BLOCKED, and start with a fork of another one's blocks.

A BLOCKED request is in none of upstream's queues, so it counts against no limit of theirs, and it keeps its blocks
unless others need them. BLOCKED is ours: upstream's status of such a request is PREEMPTED, which has no finish reason.
"""

from collections.abc import Iterator
from typing import Any

from sequence_hooks.v1.core.forks import Forks
from sequence_hooks.v1.core.pressure import Pressure
from sequence_hooks.v1.core.sequence import num_written
from sequence_hooks.v1.releases.installed import ReleaseScheduler
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus


class BlockingScheduler(ReleaseScheduler):
    """Sets requests aside, and lets them give up KV. It knows nothing of trees, only who is in one."""

    pressure: Pressure

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._blocked: dict[str, Request] = {}
        self._forks = Forks(self.kv_cache_manager)
        # Where no token is in flight, upstream's scheduler for synchronous engines does the same with less.
        is_asynchronous = self.scheduler_config.async_scheduling
        self._upstream: Any = super() if is_asynchronous else super(AsyncScheduler, self)

    @property
    def blocked(self) -> Iterator[Request]:
        """The BLOCKED requests, in the order in which they were set aside."""
        return iter(self._blocked.values())

    def reset_prefix_cache(self, reset_running_requests: bool = False, *args: Any, **kwargs: Any) -> bool:
        """As upstream: if running requests give up their KV, so do those that are set aside."""
        if reset_running_requests:
            self.pressure.give_up_all()
        is_reset: bool = super().reset_prefix_cache(reset_running_requests, *args, **kwargs)
        return is_reset

    def _is_of_a_tree(self, request: Request) -> bool:
        """Whether a hook has touched a request, or it is a child."""
        raise NotImplementedError

    def _starts_over(self, request: Request) -> None:
        """Take note that a request begins with what the prefix cache has, and computes the rest from its tokens."""
        raise NotImplementedError

    def _block(self, request: Request) -> None:
        request.status = RequestStatus.PREEMPTED
        self._blocked[request.request_id] = request

    def _unblock(self, request: Request) -> None:
        self._blocked.pop(request.request_id, None)

    def _give_up_kv(self, request: Request) -> None:
        self._free_request_blocks(request)
        request.num_computed_tokens = 0

    def _may_take(self, request: Request) -> bool:
        """Whether a request may have KV that others will recompute: new ones wait instead."""
        return request.status == RequestStatus.RUNNING or self._is_of_a_tree(request)

    def _handle_stopped_request(self, request: Request) -> bool:
        if request.request_id not in self._blocked:
            finished: bool = super()._handle_stopped_request(request)
            return finished
        if request.is_finished():
            # Upstream has ended it for another reason, after its token: a grammar that does not accept it.
            return True
        # What a step in flight samples for it is dropped, as upstream does for a session.
        request.num_computed_tokens = num_written(request)
        request.spec_token_ids = []
        request.drop_stale_output = True
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.num_output_placeholders = 0
        self.reset_preempted_req_ids.add(request.request_id)
        return False

    def _enqueue_waiting_request(self, request: Request) -> None:
        if request.request_id not in self._blocked:
            super()._enqueue_waiting_request(request)

    def _holds_kv_blocks(self, request: Request) -> bool:  # type: ignore[override]
        # A tree that has begun goes before new requests, in upstream's queue for requests that hold KV.
        return self._is_of_a_tree(request) or super()._holds_kv_blocks(request)

    def _get_local_prefix_cache_hit(self, request: Request, *args: Any) -> tuple[KVCacheBlocks, int, int, bool]:
        fork = self._forks.of(request)
        if fork is None:
            self._starts_over(request)
            return super()._get_local_prefix_cache_hit(request, *args)
        blocks, num_tokens = fork
        return blocks, num_tokens, 0, False

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        for request_id in self._forks.children & scheduler_output.num_scheduled_tokens.keys():
            self._forks.release(request_id)
        self._upstream._update_after_schedule(scheduler_output)
