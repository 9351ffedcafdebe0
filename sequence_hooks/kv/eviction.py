# SPDX-License-Identifier: Apache-2.0
"""Which sequence gives up KV when blocks run out, and by what means.

Giving up KV gains the blocks that no other sequence holds. It wastes the time to recompute their tokens, or to copy all
blocks out and back in. The least waste per block gained goes first, as in InferCept (arXiv 2402.01869).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from sequence_hooks.config.choices import BlockedKVPolicy

EvictionMeans = Literal["swap", "discard"]
"""How KV is given up: copied to swap space, or discarded and recomputed later."""

H = TypeVar("H")


@dataclass(frozen=True)
class EvictionCandidate(Generic[H]):
    """The KV of one sequence that is set aside. Counts are blocks unless noted otherwise."""

    holder: H
    """The engine's own object for the sequence."""

    priority: int
    """The priority of its request; a lower number is more urgent."""

    num_all: int
    num_owned: int
    """Blocks that no other sequence holds: the last ones of its block table."""

    block_size: int
    """Tokens per block."""

    num_computed_tokens: int
    num_indivisible_tokens: int = 0
    """Tokens at the front of its context whose KV is given up as a whole or not at all."""

    can_swap: bool = False
    """Whether it may be swapped out, and there is swap space for all of its blocks."""


@dataclass(frozen=True)
class Eviction(Generic[H]):
    """One way to gain blocks."""

    candidate: EvictionCandidate[H]
    means: EvictionMeans
    num_gained: int
    """Blocks that it frees."""

    seconds: float
    """The time that it wastes."""


@dataclass(frozen=True)
class EvictionCosts:
    """What giving up KV wastes, in seconds."""

    per_token: float
    """To recompute one token."""

    per_block: float
    """To copy one block in one direction."""


def cuts_indivisible(candidate: EvictionCandidate[H], num_freed: int) -> bool:
    """Whether freeing the last ``num_freed`` blocks would give up only a part of KV that is indivisible."""
    return (candidate.num_all - num_freed) * candidate.block_size < candidate.num_indivisible_tokens


def choose(
    candidates: Iterable[EvictionCandidate[H]], policy: BlockedKVPolicy, num_wanted: int, costs: EvictionCosts
) -> Eviction[H] | None:
    """The victim and the means: of the least urgent holders, the eviction with the least waste per block gained.

    Args:
        candidates: In order of preference; among equals the first is chosen.
        num_wanted: At most this many blocks are discarded.

    Returns:
        None if no holder has a block of its own.
    """
    evictions = [eviction for candidate in candidates for eviction in _evictions(candidate, policy, num_wanted, costs)]
    return min(evictions, key=lambda each: (-each.candidate.priority, each.seconds / each.num_gained), default=None)


def _evictions(
    candidate: EvictionCandidate[H], policy: BlockedKVPolicy, num_wanted: int, costs: EvictionCosts
) -> Iterator[Eviction[H]]:
    if candidate.num_owned == 0:
        return
    can_swap = policy in ("swap", "auto") and candidate.can_swap
    if can_swap:
        yield Eviction(candidate, "swap", candidate.num_owned, 2 * candidate.num_all * costs.per_block)
    if policy != "swap" or not can_swap:
        num_freed = min(candidate.num_owned, num_wanted)
        num_kept = 0
        if not cuts_indivisible(candidate, num_freed):
            num_kept = (candidate.num_all - num_freed) * candidate.block_size
        num_recomputed = max(0, candidate.num_computed_tokens - num_kept)
        yield Eviction(candidate, "discard", num_freed, num_recomputed * costs.per_token)
