# SPDX-License-Identifier: Apache-2.0
"""How a request gets its children's KV, and computes the glue in between.

A request of V1 computes consecutive tokens, and glue lies in several places. So all but its last run is computed by
*glue requests*, which share the blocks of their owner and exist until they are scheduled, usually for one step:

    owner           c  c  c  g  i  i  i  i  g  i  i  g       c: computed before, i: injected, g: glue
    glue request 1  ─────────■
    glue request 2  ────────────────────────■                waits before its owner, so that both are in one step
    owner           ─────────────────────────────────■       samples

No other part of the engine sees a glue request: it is gone before the outputs of its step arrive.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from sys import maxsize

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.kv.transfer import Run, SlotCopy, slot_of
from sequence_hooks.tree.injection_plan import InjectedKV
from sequence_hooks.v1.core.kept import KeptKV
from sequence_hooks.v1.core.requests import make_glue
from sequence_hooks.v1.core.sequence import V1Branch, params_of
from sequence_hooks.v1.wire import INJECTED_BY, InjectedStep, Shift
from vllm.config import SchedulerConfig
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus


@dataclass(frozen=True)
class Glue:
    """A glue request that is not scheduled yet, or only with its first tokens."""

    request: Request
    owner: Request


class Injection:
    """Owns glue requests, and the copies of the step being scheduled.

    The scheduler puts the glue that a method returns into its queues, or takes it out of them.

    Args:
        kept: The KV of finished children.
        branches: The branches of the unfinished requests in trees, by request id.
        scheduler_config: Says how much of a prompt a step computes.
        has_media_positions: Whether tokens after an image have other positions than without it.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        kept: KeptKV,
        branches: Mapping[str, V1Branch],
        special_kwargs: SpecialKwargs,
        scheduler_config: SchedulerConfig,
        has_media_positions: bool,
    ) -> None:
        self.glue: dict[str, Glue] = {}
        """By request id."""

        self.copies: dict[Request, list[SlotCopy]] = {}
        """The copies still to be made, by the request that gets them. Their sources are kept until then."""

        self._manager = manager
        self._kept = kept
        self._branches = branches
        self._scheduler_config = scheduler_config
        self._has_media_positions = has_media_positions
        self._glue_of: dict[Request, list[Request]] = {}
        """By owner, in the order of their tokens."""

        self._in_parts: dict[Request, None] = {}
        """The owners of glue of which a run may take several steps, in the order of their joins."""

        self._owners: dict[str, str] = {}
        """The owners of the glue requests of the latest step, by request id."""

        self.step: InjectedStep | None = None
        """What workers do about injected KV in the latest step; None if there is nothing to do."""

        self._num_steps = 0
        """How many steps workers were told of."""

        self._num_needed = 0
        """The number of the latest step that a request needs."""

        self._shifts_positions = special_kwargs.position_rule == "overlap"
        """Whether any position may differ from its token's index."""

        if special_kwargs.injects_kv:
            self._bypass_prefix_cache()

    def reserve(self, request: Request) -> None:
        """From now on, keep the KV that a BLOCKED request is to get, and its own blocks out of the prefix cache."""
        self.copies[request] = []

    def cancel(self, request: Request) -> None:
        """Forget what was reserved for a request that gets nothing."""
        del self.copies[request]

    def begin(self, branch: V1Branch, injected: InjectedKV) -> list[Request]:
        """Let a request that has slots get injected KV, and compute the last run of its glue.

        Returns:
            The glue that comes before it, in order.
        """
        request = branch.sequence.request
        self.copies[request] = list(self._slot_copies(request, injected))
        *runs, last = injected.take_runs(len(injected.glue), branch.positions)
        # Where requests wait by priority, then by arrival, glue arrives just before its owner, in order.
        times = list(accumulate(runs, lambda time, _: math.nextafter(time, -math.inf), initial=request.arrival_time))
        request.num_computed_tokens = last.start
        # The next step makes all copies there are.
        self._num_needed = self._num_steps + 1
        params = params_of(request)
        params.extra_args = {**(params.extra_args or {}), INJECTED_BY: self._num_needed}
        return [self._make_glue(request, run, time) for run, time in zip(runs, reversed(times), strict=False)]

    def num_plain(self, request_id: str) -> int:
        """How many tokens at the front of a request determine their KV, so that others may find it by them."""
        branch = self._branches.get(request_id)
        if branch is None:
            return 0 if request_id in self.glue else maxsize
        is_other = branch.injected is not None or branch.sequence.request in self.copies
        return 0 if is_other else branch.positions.num_plain

    def after_parts(self) -> list[Request]:
        """The waiting requests that the next step cannot compute, because they come after glue that takes longer."""
        found = []
        for owner in self._in_parts:
            is_after_part = False
            for each in (*self._glue_of[owner], owner):
                if is_after_part and each.status != RequestStatus.RUNNING:
                    found.append(each)
                is_after_part |= self._takes_longer(each)
        return found

    def must_wait(self, request: Request, inflight_prefills: Collection[Request]) -> bool:
        """Whether a waiting request has to wait for glue of an earlier step.

        Args:
            inflight_prefills: The running requests whose prompts do not end within the step, as upstream keeps them.
        """
        for each in self._glue_of.get(self._owner_of(request), ()) if self._glue_of else ():
            if each is request:
                return False
            if each.status != RequestStatus.RUNNING or each in inflight_prefills:
                return True
        return False

    def send(self, output: SchedulerOutput, requests: Mapping[str, Request]) -> None:
        """Set `step`, which travels with a schedule to the workers, and release the sources of the copies."""
        self.step = None
        if not output.total_num_scheduled_tokens:
            return
        copies = [copy for each in self.copies.values() for copy in each]
        shifts = dict(self._shifts(output.num_scheduled_tokens, requests))
        if copies or shifts or self._num_needed > self._num_steps:
            self._num_steps += 1
            self.step = InjectedStep(self._num_steps, copies, shifts)
        # A request that takes these blocks now writes to them after the copies.
        for request in self.copies:
            self._kept.release_settled(request)
        self.copies.clear()

    def take_computed_glue(self, output: SchedulerOutput) -> list[Request]:
        """Forget the glue that a step computes to its end, and return it."""
        scheduled = [name for name in self.glue if name in output.num_scheduled_tokens]
        parted = [name for name in scheduled if self.glue[name].request.is_prefill_chunk]
        self._in_parts.update(dict.fromkeys(self.glue[name].owner for name in parted))
        self._owners = {name: self.glue[name].owner.request_id for name in scheduled}
        return self._forget([name for name in scheduled if name not in parted])

    def stop(self, request: Request) -> list[Request]:
        """Drop the pending copies and glue of a request that loses its KV; return this glue."""
        self.copies.pop(request, None)
        return self._forget([glue.request_id for glue in self._glue_of.get(request, ())])

    def by_owner(self, output: SchedulerOutput) -> Mapping[str, int]:
        """How many tokens of each request the latest step computes, its glue included."""
        counts: Counter[str] = Counter()
        for name, num_tokens in output.num_scheduled_tokens.items():
            counts[self._owners.get(name, name)] += num_tokens
        return counts

    def _bypass_prefix_cache(self) -> None:
        """Keep injected KV, and KV computed after it, out of the prefix cache, where tokens have to determine their KV.
        The same holds for tokens that are computed at shifted positions."""
        coordinator = self._manager.coordinator
        enter = coordinator.cache_blocks

        def enter_own(request: Request, num_computed_tokens: int) -> None:
            num_plain = self.num_plain(request.request_id)
            if num_plain:
                enter(request, min(num_computed_tokens, num_plain))

        coordinator.cache_blocks = enter_own  # type: ignore[method-assign]

    def _slot_copies(self, request: Request, injected: InjectedKV) -> Iterator[SlotCopy]:
        (table,) = self._manager.get_block_ids(request.request_id)
        for copy in injected.take_copies():
            source = self._kept.slot(copy.child, copy.source_index)
            destination = slot_of(table, self._kept.block_size, copy.parent_index)
            yield SlotCopy(source, destination, copy.source_position, copy.position)

    def _shifts(
        self, num_scheduled: Mapping[str, int], requests: Mapping[str, Request]
    ) -> Iterator[tuple[str, list[Shift]]]:
        """For each request that computes shifted tokens in this step, by how much they are shifted."""
        for name, num_tokens in num_scheduled.items() if self._shifts_positions else ():
            request = requests[name]
            branch = self._branches.get(self._owner_of(request).request_id)
            start = request.num_computed_tokens
            runs = [] if branch is None else list(branch.positions.runs(start, start + num_tokens))
            if any(run.position_offset for run in runs):
                yield name, [Shift(run.end - run.start, run.position_offset) for run in runs]

    def _make_glue(self, owner: Request, run: Run, arrival_time: float) -> Request:
        glue = make_glue(owner, run, arrival_time, owner.mm_features if self._has_media_positions else [])
        # The blocks are its owner's, which holds them for longer, so no reference is taken.
        for manager in self._manager.coordinator.single_type_managers:
            num_blocks = -(-run.end // manager.block_size)
            manager.req_to_blocks[glue.request_id] = manager.req_to_blocks[owner.request_id][:num_blocks]
        self.glue[glue.request_id] = Glue(glue, owner)
        self._glue_of.setdefault(owner, []).append(glue)
        if self._takes_longer(glue):
            self._in_parts[owner] = None
        return glue

    def _takes_longer(self, glue: Request) -> bool:
        """Whether a part of it will be computed after the next step, as far as is known."""
        threshold: int = self._scheduler_config.long_prefill_token_threshold
        return glue.is_prefill_chunk or 0 < threshold < glue.num_tokens - glue.num_computed_tokens

    def _owner_of(self, request: Request) -> Request:
        """The owner of a glue request; any other one itself."""
        glue = self.glue.get(request.request_id)
        return request if glue is None else glue.owner

    def _forget(self, names: Iterable[str]) -> list[Request]:
        ended = [self.glue.pop(name) for name in names]
        for glue in ended:
            others = self._glue_of[glue.owner]
            others.remove(glue.request)
            if not others:
                del self._glue_of[glue.owner]
                self._in_parts.pop(glue.owner, None)
            for manager in self._manager.coordinator.single_type_managers:
                del manager.req_to_blocks[glue.request.request_id]
        return [glue.request for glue in ended]
