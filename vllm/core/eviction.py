# SPDX-License-Identifier: Apache-2.0
"""Carries out what `sequence_hooks.kv.eviction` chooses, and estimates how much KV one more sequence needs.

BLOCKED parents give up KV before running groups are preempted.
"""

from collections import Counter
from collections.abc import Iterable
from math import ceil

from sequence_hooks.config.choices import BlockedKVPolicy
from sequence_hooks.kv.eviction import (
    Eviction,
    EvictionCandidate,
    EvictionCosts,
    EvictionMeans,
    choose,
    cuts_indivisible,
)
from sequence_hooks.kv.step_costs import StepCosts
from sequence_hooks.tree.events import Ended, TreeEvent
from sequence_hooks.tree.manager import DependencyManager
from vllm.core.hooked_sequence import V0Branch, V0Sequence, branch_of_seq, injected_into
from vllm.core.kept import KeptKV
from vllm.core.priority_order import PriorityOrder
from vllm.core.recorder import SchedulerRecorder
from vllm.core.shared_blocks import SharedBlocks
from vllm.logger import init_logger
from vllm.sequence import SequenceGroup, SequenceStatus

logger = init_logger(__name__)


class KVEvictor:
    """Takes KV from sequences that are set aside, by the means that the policy allows."""

    def __init__(
        self,
        blocks: SharedBlocks,
        kept: KeptKV,
        trees: DependencyManager[V0Sequence],
        policy: BlockedKVPolicy,
        order: PriorityOrder,
        recorder: SchedulerRecorder,
    ) -> None:
        self.costs = StepCosts()
        self.preserves = policy == "preserve"
        """Whether the policy lets sequences that are set aside keep their KV."""

        self.evictions: Counter[EvictionMeans] = Counter()
        """How often each means was chosen."""

        self.num_recomputed = 0
        """Tokens whose KV was discarded, and has to be recomputed."""

        self.swapped_out: list[tuple[int, int]] = []
        """The blocks that are also copied out in this step, as (source, destination)."""

        self._blocks = blocks
        self._kept = kept
        self._trees = trees
        self._policy = policy
        self._order = order
        self._recorder = recorder
        if policy == "swap" and not blocks.has_swap_space:
            logger.warning(
                "special_kwargs: blocked_kv_policy is 'swap', and there is no swap space (or prefix caching is on, "
                "with which it cannot be used); KV is discarded instead"
            )

    def evict_one(self, holding_kv: Iterable[SequenceGroup], num_wanted: int, is_last_resort: bool = False) -> bool:
        """Let one group that is set aside give up blocks: the one with the least waste among the least urgent; among
        equals, the last one.

        Args:
            holding_kv: Groups that are BLOCKED, or finished with KV that is kept for a join.
            num_wanted: At most this many blocks are discarded.
            is_last_resort: Whether no group can run otherwise; KV that the policy would keep is then given up too.

        Returns:
            False if no group has a block of its own, or the policy keeps the blocks.
        """
        if self.preserves and not is_last_resort:
            return False
        costs = EvictionCosts(*self.costs.fit()) if self._blocks.has_swap_space else EvictionCosts(1.0, 0.0)
        groups = [group for group in reversed(list(holding_kv)) if self._blocks.is_on_device(group.first_seq)]
        eviction = choose(map(self._candidate, groups), self._policy, num_wanted, costs)
        if eviction is None:
            return False
        self._carry_out(eviction)
        return True

    def evict(self, group: SequenceGroup, num_blocks: int | None = None) -> None:
        """Free the last blocks of ``group`` that no other sequence holds; their tokens will be recomputed.

        If only a part of injected KV would be left, all blocks are freed.

        Args:
            num_blocks: At most the number that it alone holds; None for all of these.
        """
        seq, candidate = group.first_seq, self._candidate(group)
        num_freed = candidate.num_owned if num_blocks is None else num_blocks
        if cuts_indivisible(candidate, num_freed):
            self.evict_all(group)
        else:
            self._recompute_from(group, self._blocks.free_last(seq, num_freed))

    def evict_all(self, group: SequenceGroup) -> None:
        """Free all blocks of ``group``, including shared ones."""
        self._blocks.free(group.first_seq)
        self._recompute_from(group, 0)

    def take_swapped_out(self) -> list[tuple[int, int]]:
        """Return, once, the blocks to copy out in this step, as (source, destination)."""
        taken, self.swapped_out = self.swapped_out, []
        return taken

    def _recompute_from(self, group: SequenceGroup, num_kept: int) -> None:
        seq = group.first_seq
        num_computed = seq.get_num_computed_tokens()
        num_kept = min(num_kept, num_computed)
        self.num_recomputed += num_computed - num_kept
        seq.reset_state_for_recompute()
        seq.data.update_num_computed_tokens(num_kept)
        branch = branch_of_seq(seq)
        if branch is not None and num_kept == 0 and branch.injected is not None:
            self._kept.release(branch)
            self._trees.discard_injected(branch)
        if seq.status != SequenceStatus.RUNNING:
            self._recorder.evicted(group.request_id, "discard", num_computed - num_kept)

    def _candidate(self, group: SequenceGroup) -> EvictionCandidate[SequenceGroup]:
        seq, injected = group.first_seq, injected_into(group.first_seq)
        num_all = self._blocks.num_blocks(seq)
        num_owned = num_all - self._blocks.num_shared(seq)
        may_swap = self._policy in ("swap", "auto") and num_owned > 0 and not seq.is_finished()
        return EvictionCandidate(
            holder=group,
            priority=self._order.priority(group),
            num_all=num_all,
            num_owned=num_owned,
            block_size=seq.block_size,
            num_computed_tokens=seq.get_num_computed_tokens(),
            num_indivisible_tokens=0 if injected is None else injected.num_indivisible,
            can_swap=may_swap and self._blocks.can_swap_out(seq),
        )

    def _carry_out(self, eviction: Eviction[SequenceGroup]) -> None:
        group = eviction.candidate.holder
        self.evictions[eviction.means] += 1
        logger.debug(
            "%s is set aside and gives up %d blocks: %s", group.request_id, eviction.num_gained, eviction.means
        )
        if eviction.means == "swap":
            self.swapped_out += self._blocks.swap_out(group.first_seq)
            self._recorder.evicted(group.request_id, "swap", 0)
        else:
            self.evict(group, eviction.num_gained)


class ChildLengthEstimate:
    """Estimates the room that one more sequence needs, from the average of children so far.

    Admitting a child that is preempted at its next block wastes its work, and gains nothing. A
    `sequence_hooks.tree.events.TreeObserver`, because trees know when a child has ended.
    """

    def __init__(self, blocks: SharedBlocks) -> None:
        self._blocks = blocks
        self._mean_len = 0.0
        """Output tokens per child: a moving average over the latest children."""

    def note(self, branch: V0Branch, event: TreeEvent) -> None:
        """Take note of the end of a child, once it waits for nothing."""
        if isinstance(event, Ended) and branch.parent is not None and branch.phase == "finished":
            self._mean_len += (len(branch.sequence.output_token_ids) - self._mean_len) / 16

    def num_wanted(self, group: SequenceGroup) -> int:
        """Blocks for what ``group`` has to compute and is expected to sample."""
        seq, params = group.first_seq, group.sampling_params
        limit = self._mean_len if params.max_tokens is None else min(self._mean_len, params.max_tokens)
        growth = max(0.0, limit - seq.get_output_len())
        return self._blocks.num_new(seq) + ceil(growth / seq.block_size)
