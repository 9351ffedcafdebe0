# SPDX-License-Identifier: Apache-2.0
"""The scheduler below trees, which also tells an observer what happens in its queues and to its blocks."""

from typing import Any

from sequence_hooks.trace.events import Stream
from sequence_hooks.trace.observer import Observer
from sequence_hooks.trace.steps import Counts
from sequence_hooks.v1.core.injecting import InjectingScheduler
from sequence_hooks.v1.core.notes import Decode, RunNotes
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request


class RecordingScheduler(InjectingScheduler):
    """Nothing is decided here; without an observer it is the same scheduler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.notes = RunNotes()
        super().__init__(*args, **kwargs)

    def observe(self, observer: Observer, decode: Decode) -> None:
        """Tell ``observer`` of all events from now on."""
        self.notes = RunNotes(observer, decode)
        pool = self.kv_cache_manager.block_pool
        # The first block is upstream's null block, which nobody can have.
        observer.note(Stream, block_size=self.block_size, num_blocks=pool.num_gpu_blocks - 1)

    def add_request(self, request: Request) -> None:
        """As upstream."""
        self.notes.arrived(request)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """As upstream."""
        start = self.notes.now()
        scheduled = super().schedule(*args, **kwargs)
        if self.notes.is_recording:
            self.notes.step(start, self._scheduled_by_owner(scheduled), self.requests, self._counts())
        return scheduled

    def note_if_idle(self) -> None:
        """Note that the last step has ended, if no other one follows until a caller or a request comes."""
        if self.notes.is_recording and not self.has_unfinished_requests():
            self.notes.step(self.notes.now(), {}, self.requests, self._counts())

    def _enqueue_waiting_request(self, request: Request) -> None:
        self.notes.lives(request)
        super()._enqueue_waiting_request(request)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if request.request_id not in self._glue:
            self.notes.preempted(request)
        super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        self.notes.ended(request)
        freed: tuple[Any, Any] = super()._free_request(request, *args, **kwargs)
        return freed

    def _counts(self) -> Counts:
        manager = self.kv_cache_manager
        pool = manager.block_pool
        managers = manager.coordinator.single_type_managers
        items = [item for each in managers for item in each.req_to_blocks.items()]
        tables = [blocks for name, blocks in items if name not in self._glue]
        held = self._forks.held | self._kept.held
        _, num_waiting = self.get_request_counts()
        return Counts(
            num_used_blocks=pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            num_unshared_blocks=sum(map(len, tables)) + sum(map(len, held.values())),
            num_blocked=len(self._blocked),
            num_waiting=num_waiting - len(self._glue),
        )
