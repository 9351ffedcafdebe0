# SPDX-License-Identifier: Apache-2.0
"""Upstream's KV manager, in which the sequences of trees share KV, are given KV of others, and give up their own."""

from collections.abc import Mapping
from typing import Any, cast

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.kv.eviction import EvictionCandidate
from sequence_hooks.v1.core.admission import TreeAdmission
from sequence_hooks.v1.core.eviction import KVEvictor
from sequence_hooks.v1.core.forks import ForkedBlocks
from sequence_hooks.v1.core.glue import Injection
from sequence_hooks.v1.core.kept import KeptKV
from sequence_hooks.v1.core.kv_groups import cut_hit, waits_for_state
from sequence_hooks.v1.core.queues import remove_glue
from sequence_hooks.v1.core.recorder import SchedulerRecorder
from sequence_hooks.v1.core.sequence import V1Branch
from sequence_hooks.v1.releases.installed import ReleaseScheduler
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import Request, RequestStatus


class TreeKVManager(KVCacheManager):
    """Owns forks, the KV that is kept of finished children, and injection."""

    @classmethod
    def adopt(cls, scheduler: ReleaseScheduler) -> "TreeKVManager":
        """Give the manager that upstream's scheduler has made for itself this class."""
        scheduler.kv_cache_manager.__class__ = cls
        return cast(TreeKVManager, scheduler.kv_cache_manager)

    def attach(
        self,
        scheduler: ReleaseScheduler,
        special_kwargs: SpecialKwargs,
        recorder: SchedulerRecorder,
        branches: Mapping[str, V1Branch],
        blocked: Mapping[str, Request],
    ) -> None:
        """Begin, before the first request.

        Args:
            branches: The branches of the unfinished requests in trees, by request id.
            blocked: The BLOCKED requests.
        """
        self._scheduler, self._branches, self._blocked = scheduler, branches, blocked
        self.forks, self.kept = ForkedBlocks(self, self.free_blocks), KeptKV(self, self.free_blocks)
        has_media_positions = scheduler.vllm_config.model_config.uses_mrope
        self.injection = Injection(
            self, self.kept, branches, special_kwargs, scheduler.scheduler_config, has_media_positions
        )
        self.evictor = KVEvictor(self, special_kwargs.blocked_kv_policy, recorder)
        self.admission = TreeAdmission(
            scheduler.waiting_with_kv,
            scheduler.waiting,
            branches,
            self.injection.glue,
            self.forks.children,
            self.block_pool,
            scheduler.policy == SchedulingPolicy.PRIORITY,
        )
        """Its scheduler's queue for the sequences of trees."""

    # What upstream's scheduler calls.

    def allocate_slots(self, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
        """As upstream; before it fails, requests that do not run give up their KV."""
        if not self._branches:
            return super().allocate_slots(request, num_new_tokens, *args, **kwargs)
        if self.injection.must_wait(request, self._scheduler._inflight_prefills):
            return None
        if request.request_id in self.injection.glue:
            # Its blocks are its owner's, and none of them is for drafts.
            num_new_tokens = min(num_new_tokens, request.num_tokens - request.num_computed_tokens)
            kwargs["num_lookahead_tokens"] = 0
        args = (num_new_tokens, *args)
        blocks = super().allocate_slots(request, *args, **kwargs)
        if blocks is None and waits_for_state(self, kwargs.get("new_computed_blocks")):
            return None
        while blocks is None and self._evict_for(request):
            blocks = super().allocate_slots(request, *args, **kwargs)
        if blocks is None:
            self.admission.note_shortage(self._scheduler.running, request)
        return blocks

    def take_kv_cache_block_copies(self) -> tuple[list[Any], list[Any]]:
        """As upstream, with the copies of states that are overwritten in this step."""
        self.forks.keep_states()
        return super().take_kv_cache_block_copies()

    # What its scheduler calls for trees.

    def cut_hit(
        self, request: Request, found: tuple[KVCacheBlocks, int, int, bool]
    ) -> tuple[KVCacheBlocks, int, int, bool]:
        """The part of what the prefix cache has ``found`` for a request that it can begin with."""
        branch = self._branches.get(request.request_id)
        if branch is None:
            return found
        return cut_hit(self, found, branch.positions.num_plain, self._scheduler.block_size)

    def send(self, output: SchedulerOutput, requests: Mapping[str, Request]) -> None:
        """Carry out what a schedule does with the KV of trees: its copies come first in the step."""
        self.injection.send(output, requests)
        self.forks.release_admitted(output.num_scheduled_tokens.keys())

    def free_blocks(self, blocks: list[KVCacheBlock]) -> None:
        """Give back references to blocks, after the latest step where a connector writes to free ones at any time."""
        self._scheduler._free_cow_retained_blocks(blocks, self._scheduler.sched_step_seq)

    @property
    def deferred(self) -> dict[str, list[int]]:
        """The ids of the blocks that are free once a step has run, by that step."""
        groups = enumerate(self._scheduler.deferred_frees)
        return {f"{number}. until step {step}": [each.block_id for each in held] for number, (step, held) in groups}

    def stop(self, request: Request) -> None:
        """Drop the fork, the copies and the glue of a request that ends, and the KV that is kept of its children."""
        self.forks.release(request.request_id)
        remove_glue(self._scheduler, self.injection.stop(request))
        self.kept.release_children(request)

    def evict(self, candidate: EvictionCandidate[Request]) -> None:
        """Evict the KV of a request that does not run, or the KV that is kept of a finished one."""
        self.evictor.note(candidate)
        request = candidate.holder
        if not self.kept.release(request.request_id):
            remove_glue(self._scheduler, self.injection.stop(request))
            self.kept.release_lost(request)
            # Upstream's method, which waits until no step in flight writes to the blocks.
            self._scheduler._free_request_blocks(request)
            # Upstream reserves blocks for what it has loaded, and is to compute the rest.
            self._scheduler._inflight_prefills.discard(request)
            request.num_computed_tokens = 0

    def evict_all(self) -> None:
        """Evict the KV of all requests that do not run."""
        kept, holders = self.kept.candidates(self.injection.copies), [*self._blocked.values(), *self._waiting()]
        holders = [each for each in holders if each.status != RequestStatus.WAITING_FOR_REMOTE_KVS]
        for candidate in [*kept, *self.evictor.candidates(holders)]:
            self.evict(candidate)
        self.forks.release_all()

    def is_of_a_tree(self, request: Request) -> bool:
        """Whether a hook has touched a request, or it is a child, or glue of one of these."""
        return request.request_id in self._branches or request.request_id in self.injection.glue

    def _evict_for(self, request: Request) -> bool:
        """Let one holder give up KV that a request needs; False if no holder has KV that it may be asked to free."""
        running = self._scheduler.running
        # A request that runs alone would be preempted for itself, and get no further the next time.
        is_last_resort = all(each is request for each in running)
        # New requests wait for long before they take KV that others would recompute.
        is_of_a_tree, is_running = self.is_of_a_tree(request), request.status == RequestStatus.RUNNING
        may_evict = is_running or is_of_a_tree or self.admission.shortage.is_urgent
        if not is_last_resort and (self.evictor.preserves or not may_evict):
            return False
        # Children which have yet to begin keep BLOCKED sequences from giving up what they share.
        is_for_others = not is_of_a_tree or (is_running and not all(map(self.is_of_a_tree, running)))
        takes_all = is_last_resort or is_for_others
        blocked = filter(self._gives_room, self._blocked.values())
        waiting = filter(self._gives_room, self._waiting() if takes_all else ())
        kept = self.kept.candidates(self.injection.copies)
        victim = self.evictor.choose(request, blocked, kept, waiting)
        if victim is None:
            return takes_all and self.forks.release_one_for(request.request_id)
        self.evict(victim)
        return True

    def _gives_room(self, request: Request) -> bool:
        """Whether blocks of a request that does not run are free as soon as it gives them up: a connector writes to
        them, or a step in flight may.
        """
        scheduler = self._scheduler
        is_loading = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        is_written = scheduler.defer_block_free and request.last_sched_seq > scheduler.processed_step_seq
        return not is_loading and not is_written

    def _waiting(self) -> list[Request]:
        """The waiting requests of trees."""
        return [each for each in self.admission if each.request_id not in self.injection.glue]
