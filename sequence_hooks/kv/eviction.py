# SPDX-License-Identifier: Apache-2.0
"""Which sequence gives up KV when blocks run out, and by what means.

Giving up KV gains the blocks that no other sequence holds. It wastes the time to recompute their tokens, or to copy all
blocks out and back in. The least waste per block gained goes first, as in InferCept (arXiv 2402.01869).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from sequence_hooks.config.choices import BlockedKVPolicy

Means = Literal["swap", "discard"]
"""How KV is given up: copied to swap space, or discarded and recomputed later."""

H = TypeVar("H")


@dataclass(frozen=True)
class Holding(Generic[H]):
    """The KV of one sequence that is set aside. Counts are blocks unless noted otherwise."""

    holder: H
    """The engine's own object for the sequence."""

    urgency: int
    """The urgency of its request; a lower number is more urgent."""

    num_all: int
    num_owned: int
    """Blocks that no other sequence holds: the last ones of its block table."""

    block_size: int
    """Tokens per block."""

    num_computed_tokens: int
    num_indivisible_tokens: int
    """Tokens at the front of its context whose KV is given up as a whole or not at all; 0 if there are none."""

    can_swap: bool
    """Whether it may be swapped out, and there is swap space for all of its blocks."""


@dataclass(frozen=True)
class Option(Generic[H]):
    """One way to gain blocks."""

    holder: H
    urgency: int
    means: Means
    num_gained: int
    """Blocks that it frees."""

    seconds: float
    """The time that it wastes."""


@dataclass(frozen=True)
class Costs:
    """What giving up KV wastes, in seconds."""

    per_token: float
    """To recompute one token."""

    per_block: float
    """To copy one block in one direction."""


def cuts_indivisible(holding: Holding[H], num_freed: int) -> bool:
    """Whether freeing the last ``num_freed`` blocks would give up only a part of KV that is indivisible."""
    return (holding.num_all - num_freed) * holding.block_size < holding.num_indivisible_tokens


def choose(holdings: Iterable[Holding[H]], policy: BlockedKVPolicy, num_wanted: int, costs: Costs) -> Option[H] | None:
    """The victim and the means: of the least urgent holders, the option with the least waste per block gained.

    Args:
        holdings: In order of preference; among equals the first is chosen.
        num_wanted: At most this many blocks are discarded.

    Returns:
        None if no holder has a block of its own.
    """
    options = [option for holding in holdings for option in _options(holding, policy, num_wanted, costs)]
    return min(options, key=lambda option: (-option.urgency, option.seconds / option.num_gained), default=None)


def _options(holding: Holding[H], policy: BlockedKVPolicy, num_wanted: int, costs: Costs) -> Iterator[Option[H]]:
    if holding.num_owned == 0:
        return
    holder, urgency = holding.holder, holding.urgency
    can_swap = policy in ("swap", "auto") and holding.can_swap
    if can_swap:
        yield Option(holder, urgency, "swap", holding.num_owned, 2 * holding.num_all * costs.per_block)
    if policy != "swap" or not can_swap:
        num_freed = min(holding.num_owned, num_wanted)
        num_kept = 0
        if not cuts_indivisible(holding, num_freed):
            num_kept = (holding.num_all - num_freed) * holding.block_size
        num_recomputed = max(0, holding.num_computed_tokens - num_kept)
        yield Option(holder, urgency, "discard", num_freed, num_recomputed * costs.per_token)
