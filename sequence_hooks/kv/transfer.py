# SPDX-License-Identifier: Apache-2.0
"""What a scheduler asks of its workers for injected KV: slots to copy, runs to prefill.

A slot is a token's place in the KV cache: ``block * block_size + offset``. A position is what a token's rotary
embedding rotates by; without injection it is the token's index in its context.
"""

from collections.abc import Sequence
from typing import NamedTuple


class SlotCopy(NamedTuple):
    """A copy of one token's keys and values, in all layers, from slot to slot."""

    source: int
    destination: int
    source_position: int
    """The rotary position that the key has."""
    position: int
    """The rotary position that the copied key gets."""


class Run(NamedTuple):
    """Consecutive tokens of a context to prefill in one go, between tokens whose KV already exists."""

    start: int
    """Index of the first token."""
    end: int
    """Index after the last token."""
    position_offset: int
    """Position minus index of each token."""


def slot_of(block_ids: Sequence[int], block_size: int, index: int) -> int:
    """The slot of a token by its index in a context whose block table is ``block_ids``."""
    return block_ids[index // block_size] * block_size + index % block_size
