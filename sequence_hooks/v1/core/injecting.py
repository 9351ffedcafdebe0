# SPDX-License-Identifier: Apache-2.0
"""The scheduler below trees, in which a request may get KV of others, with glue in between that it computes itself.

A request of V1 computes consecutive tokens, and glue lies in several places. So all but its last run is computed by
*glue requests*, which share the blocks of their owner and exist until they are scheduled, usually for one step:

    owner           c  c  c  g  i  i  i  i  g  i  i  g       c: computed before, i: injected, g: glue
    glue request 1  ─────────■
    glue request 2  ────────────────────────■                waits before its owner, so that both are in one step
    owner           ─────────────────────────────────■       samples

Nobody else ever sees a glue request: it is gone before the outputs of its step come.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

from sequence_hooks.config.choices import BlockedKVPolicy
from sequence_hooks.kv.transfer import Run, SlotCopy, slots_of
from sequence_hooks.trace.observer import Observer
from sequence_hooks.tree.injection import InjectedKV
from sequence_hooks.v1.core.blocking import BlockingScheduler
from sequence_hooks.v1.core.kept import KeptKV
from sequence_hooks.v1.core.pressure import Pressure
from sequence_hooks.v1.core.requests import make_glue
from sequence_hooks.v1.wire import InjectedStep, attach_step
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus


@dataclass(frozen=True)
class Glue:
    """A glue request that is not scheduled yet, or only with its first tokens."""

    request: Request
    owner: Request


class InjectingScheduler(BlockingScheduler):
    """Owns glue requests, the copies of the step being scheduled, and the KV that is kept for them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept = KeptKV(self.kv_cache_manager)
        self._glue: dict[str, Glue] = {}
        """By request id."""

        self._glue_of: dict[Request, list[Request]] = {}
        """By owner, in the order of their tokens."""

        self._copies: dict[Request, list[SlotCopy]] = {}
        """The copies still to be made, by the request that gets them. Their sources are kept until then."""

        self._shifts_positions = False
        """Whether any position may differ from its token's index."""

        self._owners: dict[str, str] = {}
        """The owners of the glue requests of the latest step, by request id."""

    def relieve_by(self, policy: BlockedKVPolicy, observer: Observer) -> None:
        """Let BLOCKED requests, and finished children, give up KV as ``policy`` says."""
        self.pressure = Pressure(
            self.kv_cache_manager,
            self._forks,
            policy,
            observer,
            give_up=self._give_up_kv,
            set_aside=self._blocked.values,
            kept=lambda: self._kept.holdings(self._copies),
            queued=lambda: [each for each in self.waiting_first if each.request_id not in self._glue],
            is_early=self._is_early,
            may_take=self._may_take,
            can_run=lambda: bool(self.running),
        )

    def share_no_injected_blocks(self) -> None:
        """Keep injected KV, and what is computed after it, out of the prefix cache: its hash would lie."""
        coordinator = self.kv_cache_manager.coordinator
        enter = coordinator.cache_blocks

        def enter_own(request: Request, num_computed_tokens: int) -> None:
            is_to_get_some = request in self._copies
            if not is_to_get_some and request.request_id not in self._glue and self._injected_of(request) is None:
                enter(request, num_computed_tokens)

        coordinator.cache_blocks = enter_own  # type: ignore[method-assign]

    def _injected_of(self, request: Request) -> InjectedKV | None:
        """What was injected into a request, or into the one that it was forked from."""
        raise NotImplementedError

    def _has_slots(self, request: Request) -> bool:
        """Give a BLOCKED request slots for its whole context; False if there are not enough."""
        # From here on, what it is to get is kept.
        self._copies[request] = []
        has_slots = self.pressure.allocate_slots(request, request.num_tokens - request.num_computed_tokens) is not None
        if not has_slots:
            del self._copies[request]
        return has_slots

    def _begin_injected(self, request: Request, injected: InjectedKV) -> None:
        """Let a request that has slots go on with injected KV: its glue is queued, and it computes the last run."""
        self._copies[request] = list(self._slot_copies(request, injected))
        *runs, last = injected.take_runs(len(injected.glue))
        # Where requests wait by priority, then by arrival, glue arrives just before its owner, in order.
        times = list(accumulate(runs, lambda time, _: math.nextafter(time, -math.inf), initial=request.arrival_time))
        for run, arrival_time in zip(runs, reversed(times), strict=False):
            self.waiting_first.add_request(self._make_glue(request, run, arrival_time))
        request.num_computed_tokens = last.start

    def _slot_copies(self, request: Request, injected: InjectedKV) -> Iterator[SlotCopy]:
        size = self._kept.block_size
        (table,) = self.kv_cache_manager.get_block_ids(request.request_id)
        for child, same in groupby(injected.take_copies(), key=lambda copy: copy.child):
            copies = list(same)
            sources = self._kept.slots(child, (copy.source_index for copy in copies))
            destinations = slots_of(table, size, (copy.parent_index for copy in copies))
            for copy, source, destination in zip(copies, sources, destinations, strict=True):
                yield SlotCopy(source, destination, copy.source_position, copy.position)

    def _make_glue(self, owner: Request, run: Run, arrival_time: float) -> Request:
        glue = make_glue(owner, run, arrival_time)
        # They are its owner's, which holds them for longer, so no reference is taken.
        (manager,) = self.kv_cache_manager.coordinator.single_type_managers
        manager.req_to_blocks[glue.request_id] = manager.req_to_blocks[owner.request_id][
            : -(-run.end // manager.block_size)
        ]
        self._glue[glue.request_id] = Glue(glue, owner)
        self._glue_of.setdefault(owner, []).append(glue)
        self.requests[glue.request_id] = glue
        return glue

    def _owner_of(self, request: Request) -> Request:
        """The owner of a glue request; any other one itself."""
        glue = self._glue.get(request.request_id)
        return request if glue is None else glue.owner

    def _is_early(self, request: Request) -> bool:
        """Whether a waiting request has to wait for glue of a step before."""
        for each in self._glue_of.get(self._owner_of(request), ()) if self._glue_of else ():
            if each is request:
                return False
            if not self._is_scheduled(each):
                return True
        return False

    def _is_scheduled(self, glue: Request) -> bool:
        # Upstream keeps those in flight whose prompt the step ends within.
        return glue.status == RequestStatus.RUNNING and glue not in self._inflight_prefills

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        if scheduler_output.total_num_scheduled_tokens and (self._copies or self._shifts_positions):
            self._tell_workers(scheduler_output)
        super()._update_after_schedule(scheduler_output)
        if self._glue or self._owners:
            scheduled = [name for name in self._glue if name in scheduler_output.num_scheduled_tokens]
            self._owners = {name: self._glue[name].owner.request_id for name in scheduled}
            self._end_glue(name for name in scheduled if not self._glue[name].request.is_prefill_chunk)

    def _scheduled_by_owner(self, scheduler_output: SchedulerOutput) -> Mapping[str, int]:
        """How many tokens of each request the latest step computes, its glue included."""
        if not self._owners:
            scheduled: Mapping[str, int] = scheduler_output.num_scheduled_tokens
            return scheduled
        counts: Counter[str] = Counter()
        for name, num_tokens in scheduler_output.num_scheduled_tokens.items():
            counts[self._owners.get(name, name)] += num_tokens
        return counts

    def _tell_workers(self, scheduler_output: SchedulerOutput) -> None:
        copies = [copy for each in self._copies.values() for copy in each]
        step = InjectedStep(copies, dict(self._offsets(scheduler_output.num_scheduled_tokens)))
        if step:
            attach_step(scheduler_output, step)
        # What takes these blocks now writes to them after the copies.
        for request in self._copies:
            self._release_kept(request)
        self._copies.clear()

    def _offsets(self, scheduled: Iterable[str]) -> Iterator[tuple[str, int]]:
        """Position minus index of the tokens that each request computes, where it is not 0."""
        for name in scheduled if self._shifts_positions else ():
            request = self.requests[name]
            injected = self._injected_of(self._owner_of(request))
            offset = 0 if injected is None else injected.positions.offset(request.num_computed_tokens)
            if offset:
                yield name, offset

    def _end_glue(self, names: Iterable[str]) -> None:
        """Forget glue requests, in whatever queue they are. Each queue is gone through once, however many they are."""
        ended = [self._glue.pop(name) for name in names]
        running = {glue.request for glue in ended if glue.request.status == RequestStatus.RUNNING}
        if running:
            self.running = [each for each in self.running if each not in running]
        if len(running) < len(ended):
            self.waiting_first.remove_requests([each.request for each in ended if each.request not in running])
        (manager,) = self.kv_cache_manager.coordinator.single_type_managers
        for glue in ended:
            others = self._glue_of[glue.owner]
            others.remove(glue.request)
            if not others:
                del self._glue_of[glue.owner]
            name = glue.request.request_id
            if glue.request in running:
                self.finished_req_ids.add(name)
            self._inflight_prefills.discard(glue.request)
            del manager.req_to_blocks[name]
            del self.requests[name]

    def _stop_injecting(self, request: Request) -> None:
        """Drop what is still to be copied and computed for a request that loses its KV."""
        self._end_glue([glue.request_id for glue in self._glue_of.get(request, ())])
        self._copies.pop(request, None)
        self._release_kept(request)

    def _release_kept(self, parent: Request) -> None:
        for child in self._kept.children_of(parent):
            self._kept.release(child)

    def _give_up_kv(self, request: Request) -> None:
        if not self._kept.give_up(request.request_id):
            self._stop_injecting(request)
            super()._give_up_kv(request)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        glue = self._glue.get(request.request_id)
        if glue is None:
            super()._preempt_request(request, *args, **kwargs)
        else:
            # Without it, its owner cannot go on with injected KV.
            self.pressure.give_up(glue.owner)
