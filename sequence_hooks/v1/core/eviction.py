# SPDX-License-Identifier: Apache-2.0
"""Which request gives up KV when upstream's allocation fails.

V1 has no swap space, so KV that is evicted is discarded. Its full blocks stay in the prefix cache until they are
needed, and its request finds what is left of them when it resumes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from sequence_hooks.config.choices import BlockedKVPolicy
from sequence_hooks.kv.eviction import EvictionCandidate, EvictionCosts, EvictionMeans, choose
from sequence_hooks.v1.core.recorder import SchedulerRecorder
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import Request

_COSTS = EvictionCosts(per_token=1.0, per_block=0.0)


class KVEvictor:
    """Chooses the requests whose KV is evicted, and counts evictions. The caller names the candidates, and frees KV."""

    def __init__(self, manager: KVCacheManager, policy: BlockedKVPolicy, recorder: SchedulerRecorder) -> None:
        self.preserves = policy == "preserve"
        """Whether KV is evicted only if no request could run otherwise."""

        self.evictions: Counter[EvictionMeans] = Counter()
        self.num_recomputed = 0
        """Tokens whose KV was evicted."""

        self._manager = manager
        self._policy = policy
        self._recorder = recorder

    def choose(
        self,
        request: Request,
        blocked: Iterable[Request],
        kept: Iterable[EvictionCandidate[Request]],
        waiting: Iterable[Request],
    ) -> EvictionCandidate[Request] | None:
        """What to evict for a ``request``, never its own KV; None if no other request has an unshared block.

        Args:
            blocked: The BLOCKED requests; of several equally good ones, the last is chosen.
            kept: The kept KV of finished requests that may be evicted; it is preferred among equals.
            waiting: The waiting requests, which are evicted only if no others can be.
        """
        set_aside = self.candidates(each for each in blocked if each is not request)
        return self._best([*set_aside, *kept]) or self._best(
            self.candidates(each for each in waiting if each is not request)
        )

    def note(self, evicted: EvictionCandidate[Request]) -> None:
        """Take note that KV is about to be evicted."""
        self.evictions["discard"] += 1
        self.num_recomputed += evicted.num_computed_tokens
        self._recorder.evicted(evicted.holder.request_id, "discard", evicted.num_computed_tokens)

    def candidates(self, requests: Iterable[Request]) -> list[EvictionCandidate[Request]]:
        """What each of the ``requests`` holds that has KV."""
        return [self.candidate(each) for each in requests if each.num_computed_tokens]

    def candidate(self, request: Request) -> EvictionCandidate[Request]:
        """What a request holds."""
        managers = self._manager.coordinator.single_type_managers
        blocks = [
            block for each in managers for block in each.req_to_blocks.get(request.request_id, ()) if not block.is_null
        ]
        return EvictionCandidate(
            holder=request,
            priority=request.priority,
            num_all=len(blocks),
            num_owned=sum(block.ref_cnt == 1 for block in blocks),
            block_size=managers[0].block_size,
            num_computed_tokens=request.num_computed_tokens,
        )

    def _best(self, candidates: Sequence[EvictionCandidate[Request]]) -> EvictionCandidate[Request] | None:
        eviction = choose(reversed(candidates), self._policy, self._manager.block_pool.num_gpu_blocks, _COSTS)
        return None if eviction is None else eviction.candidate
