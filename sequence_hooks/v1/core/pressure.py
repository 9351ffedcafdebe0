# SPDX-License-Identifier: Apache-2.0
"""Which sequence gives up KV when upstream's allocation fails, and how.

V1 has no swap space, so KV that is given up is discarded. Its full blocks stay in the prefix cache until they are
needed, and its sequence finds what is left of them when it goes on.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from sequence_hooks.config.choices import BlockedKVPolicy
from sequence_hooks.kv.eviction import Costs, Holding, Means, choose
from sequence_hooks.trace.events import GaveUp
from sequence_hooks.trace.observer import Observer
from sequence_hooks.v1.core.forks import Forks
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.request import Request

Allocate = Callable[..., KVCacheBlocks | None]
_COSTS = Costs(per_token=1.0, per_block=0.0)


class Pressure:
    """Stands before upstream's ``allocate_slots``: where that fails, sequences that are set aside give up KV.

    While there is no tree, nobody could: then it steps aside, so that a request costs no call of ours.

    Args:
        give_up: Frees the KV of a request that is not running, or what is kept of it.
        set_aside: The requests that are BLOCKED, least preferred victims first.
        kept: What is kept of finished requests, and could be given up.
        queued: The waiting requests that hold KV; they give it up only if nothing can run otherwise.
        is_early: Whether a waiting request cannot start in this step.
        may_take: Whether a waiting request may have KV that others have to recompute.
        can_run: Whether any request is running.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        forks: Forks,
        policy: BlockedKVPolicy,
        observer: Observer,
        give_up: Callable[[Request], None],
        set_aside: Callable[[], Iterable[Request]],
        kept: Callable[[], Iterable[Holding[Request]]],
        queued: Callable[[], Iterable[Request]],
        is_early: Callable[[Request], bool],
        may_take: Callable[[Request], bool],
        can_run: Callable[[], bool],
    ) -> None:
        self.evictions: Counter[Means] = Counter()
        self.num_recomputed = 0
        """Tokens whose KV was given up."""

        self._manager = manager
        self._forks = forks
        self._policy = policy
        self._observer = observer
        self._free = give_up
        self._set_aside = set_aside
        self._kept = kept
        self._queued = queued
        self._is_early = is_early
        self._may_take = may_take
        self._can_run = can_run
        self._allocate: Allocate = manager.allocate_slots

    def begin(self) -> None:
        """Stand before upstream's allocation in the steps that follow."""
        self._manager.allocate_slots = self.allocate_slots  # type: ignore[method-assign]

    def step_aside(self) -> None:
        """Let upstream allocate by itself in the steps that follow."""
        self._manager.allocate_slots = self._allocate  # type: ignore[method-assign]

    def allocate_slots(self, request: Request, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
        """Upstream's ``allocate_slots``; before it fails, others that are set aside give up their KV."""
        if self._is_early(request):
            return None
        blocks = self._allocate(request, *args, **kwargs)
        while blocks is None and self._relieve(request):
            blocks = self._allocate(request, *args, **kwargs)
        return blocks

    def give_up_all(self) -> None:
        """Let all that do not run give up their KV: it is not valid any more."""
        for holding in [*self._kept(), *self._holdings(self._set_aside()), *self._holdings(self._queued())]:
            self._give_up(holding)
        for child in list(self._forks.children):
            self._forks.release(child)

    def give_up(self, request: Request) -> None:
        """Let a request that does not run give up its KV."""
        self._give_up(self._holding(request))

    def _relieve(self, request: Request) -> bool:
        """Let one holder give up KV for ``request``; False if none has any that it has to give up."""
        is_last_resort = not self._can_run()
        if not is_last_resort and (self._policy == "preserve" or not self._may_take(request)):
            return False
        set_aside = self._holdings(each for each in self._set_aside() if each is not request)
        if self._give_up_one([*set_aside, *self._kept()]):
            return True
        if not is_last_resort:
            return False
        if self._give_up_one(self._holdings(each for each in self._queued() if each is not request)):
            return True
        if self._forks.release_last_but(request.request_id):
            return True
        # A child's own fork keeps its parent from giving up those blocks. This attempt is made with them and fails; the
        # next one finds in the prefix cache what is left of them.
        self._forks.release(request.request_id)
        return False

    def _give_up_one(self, holdings: list[Holding[Request]]) -> bool:
        option = choose(reversed(holdings), self._policy, self._manager.block_pool.num_gpu_blocks, _COSTS)
        if option is None:
            return False
        self._give_up(next(holding for holding in holdings if holding.holder is option.holder))
        return True

    def _give_up(self, holding: Holding[Request]) -> None:
        num_recomputed = holding.num_computed_tokens
        self.evictions["discard"] += 1
        self.num_recomputed += num_recomputed
        self._observer.note(GaveUp, sequence=holding.holder.request_id, means="discard", num_recomputed=num_recomputed)
        self._free(holding.holder)

    def _holdings(self, requests: Iterable[Request]) -> list[Holding[Request]]:
        return [self._holding(each) for each in requests if each.num_computed_tokens]

    def _holding(self, request: Request) -> Holding[Request]:
        managers = self._manager.coordinator.single_type_managers
        blocks = [block for each in managers for block in each.req_to_blocks.get(request.request_id, ())]
        return Holding(
            holder=request,
            urgency=request.priority,
            num_all=len(blocks),
            num_owned=sum(block.ref_cnt == 1 for block in blocks),
            block_size=managers[0].block_size,
            num_computed_tokens=request.num_computed_tokens,
            num_indivisible_tokens=0,
            can_swap=False,
        )
