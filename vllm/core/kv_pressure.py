# SPDX-License-Identifier: Apache-2.0
"""Who gives up KV when there is too little of it, by what means, and who may take more.

BLOCKED parents give theirs up before a running sequence is preempted. What is gained are the blocks that
nobody shares; what is wasted is the time to compute their tokens again, or to copy all blocks out and back.
The least waste for a block gained goes first, as in InferCept (arXiv 2402.01869).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

from vllm.core.kept_children import KeptChildren
from vllm.core.shared_blocks import SharedBlocks
from vllm.core.step_costs import StepCosts
from vllm.core.urgency import Urgency
from vllm.hooks.config import BlockedKVPolicy
from vllm.hooks.injection import spliced_of
from vllm.logger import init_logger
from vllm.sequence import Sequence, SequenceGroup

logger = init_logger(__name__)

Means = Literal["swap", "discard"]


@dataclass(frozen=True)
class Option:
    """One way to gain blocks."""

    group: SequenceGroup
    means: Means
    num_gained: int
    """Blocks."""

    seconds: float
    """Wasted."""


class KVPressure:
    """Takes KV from BLOCKED sequences. The policy says by what means."""

    def __init__(self, blocks: SharedBlocks, kept: KeptChildren, policy: BlockedKVPolicy, urgency: Urgency) -> None:
        self.costs = StepCosts()
        self.evictions: Counter[Means] = Counter()
        """How often each means was taken."""

        self.num_recomputed = 0
        """Tokens whose KV was given up, and has to be computed again."""

        self._blocks = blocks
        self._kept = kept
        self._policy = policy
        self._urgency = urgency
        self._swapped_out: list[tuple[int, int]] = []
        if policy == "swap" and not blocks.has_swap_space:
            logger.warning(
                "special_kwargs: blocked_kv_policy is 'swap', and there is no swap space (or prefix caching is on, "
                "with which it cannot be used); KV is discarded instead"
            )

    def relieve(self, parked: Iterable[SequenceGroup], num_wanted: int, is_last_resort: bool = False) -> bool:
        """Have one of the groups that are set aside give up blocks: the least urgent, and of those the one with
        the least waste; among equals the last one.

        Args:
            parked: BLOCKED, or finished with KV that is kept for a join.
            num_wanted: No more blocks than these are discarded.
            is_last_resort: Nobody can go on otherwise: what the policy would keep is given up too.

        Returns:
            False if none has a block of its own, or the policy keeps them.
        """
        if self.keeps_blocked and not is_last_resort:
            return False
        per_token, per_block = self.costs.fit() if self._blocks.has_swap_space else (1.0, 0.0)
        options: list[Option] = []
        for group in reversed(list(parked)):
            if self._blocks.is_on_device(group.first_seq):
                options += self._options(group, num_wanted, per_token, per_block)
        if not options:
            return False
        self._take(min(options, key=lambda o: (-self._urgency.of(o.group), o.seconds / o.num_gained)))
        return True

    def give_up(self, seq: Sequence, num_blocks: int | None = None) -> None:
        """Free the last blocks of ``seq`` that nobody shares; their tokens will be computed again.

        Injected KV stays as a whole or not at all: behind a part of it positions would be others.

        Args:
            num_blocks: No more than it has of its own; None for all of them.
        """
        num_owned = self._blocks.num_blocks(seq) - self._blocks.num_shared(seq)
        num_freed = num_owned if num_blocks is None else num_blocks
        if self._cuts_injected(seq, num_freed):
            self.give_up_all(seq)
        else:
            self._recompute_from(seq, self._blocks.free_last(seq, num_freed))

    def give_up_all(self, seq: Sequence) -> None:
        """Let go of all blocks of ``seq``, shared ones too."""
        self._blocks.free(seq)
        self._recompute_from(seq, 0)

    def note_swapped_out(self, blocks: Iterable[tuple[int, int]]) -> None:
        """``blocks``, from and to, are copied out in this step, too."""
        self._swapped_out += blocks

    def take_swapped_out(self) -> list[tuple[int, int]]:
        """The blocks to copy out in this step, from and to."""
        taken, self._swapped_out = self._swapped_out, []
        return taken

    @property
    def keeps_blocked(self) -> bool:
        """Whether the policy is that who is set aside keeps KV."""
        return self._policy == "preserve"

    @property
    def has_swapped_out(self) -> bool:
        """Whether this step copies blocks out."""
        return bool(self._swapped_out)

    def _recompute_from(self, seq: Sequence, num_kept: int) -> None:
        num_computed = seq.get_num_computed_tokens()
        num_kept = min(num_kept, num_computed)
        self.num_recomputed += num_computed - num_kept
        seq.reset_state_for_recompute()
        seq.data.update_num_computed_tokens(num_kept)
        if num_kept == 0 and spliced_of(seq) is not None:
            self._kept.release(seq.branch)
            seq.branch.spliced = None

    def _cuts_injected(self, seq: Sequence, num_freed: int) -> bool:
        spliced, num_kept = spliced_of(seq), (self._blocks.num_blocks(seq) - num_freed) * seq.block_size
        return spliced is not None and (bool(spliced.glue) or num_kept < spliced.end)

    def _options(self, group: SequenceGroup, num_wanted: int, per_token: float, per_block: float) -> Iterator[Option]:
        seq = group.first_seq
        num_all = self._blocks.num_blocks(seq)
        num_owned = num_all - self._blocks.num_shared(seq)
        if num_owned == 0:
            return
        swaps = self._policy in ("swap", "auto") and not seq.is_finished()
        can_swap = swaps and self._blocks.can_swap_out(seq)
        if can_swap:
            yield Option(group, "swap", num_owned, 2 * num_all * per_block)
        if self._policy != "swap" or not can_swap:
            num_freed = min(num_owned, num_wanted)
            num_kept = 0 if self._cuts_injected(seq, num_freed) else (num_all - num_freed) * seq.block_size
            num_tokens = max(0, seq.get_num_computed_tokens() - num_kept)
            yield Option(group, "discard", num_freed, num_tokens * per_token)

    def _take(self, option: Option) -> None:
        self.evictions[option.means] += 1
        logger.debug("%s is BLOCKED and gives up %d blocks: %s", option.group.request_id, option.num_gained, option)
        if option.means == "swap":
            self._swapped_out += self._blocks.swap_out(option.group.first_seq)
        else:
            self.give_up(option.group.first_seq, option.num_gained)


class Admission:
    """Whether there is room for one more sequence, by what its like have needed.

    A child that is let in to be preempted at its next block costs its work, and gains nothing.
    """

    def __init__(self, blocks: SharedBlocks) -> None:
        self._blocks = blocks
        self._mean_len = 0.0
        """Tokens that a child sampled, on average over the latest."""

    def note_end(self, seq: Sequence) -> None:
        """A child has ended."""
        self._mean_len += (seq.get_output_len() - self._mean_len) / 16

    def num_wanted(self, group: SequenceGroup) -> int:
        """Blocks for what ``group`` has to compute, and is expected to sample."""
        seq, params = group.first_seq, group.sampling_params
        limit = self._mean_len if params.max_tokens is None else min(self._mean_len, params.max_tokens)
        growth = max(0.0, limit - seq.get_output_len())
        return self._blocks.num_new(seq) + ceil(growth / seq.block_size)
