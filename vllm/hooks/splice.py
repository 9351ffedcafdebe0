# SPDX-License-Identifier: Apache-2.0
"""What a scheduler asks of its workers beyond upstream's metadata: KV copied slot-wise, positions shifted.

A slot is a token's place in the KV cache: ``block * block_size + offset``. A position is what a
token's rotary embedding turns by; upstream's is the token's index in its context.
"""

from typing import Any, NamedTuple

from vllm.sequence import SequenceGroupMetadata


class SlotCopy(NamedTuple):
    """One token's keys and values, of all layers, copied from slot to slot."""

    source: int
    destination: int
    source_position: int
    """The rotary position that the key has."""
    position: int
    """The rotary position that the copied key gets."""


class Run(NamedTuple):
    """Tokens of a context that are prefilled now, with KV that is not computed now before and behind them."""

    start: int
    """Index of the first."""
    end: int
    """Index behind the last."""
    position_offset: int
    """Their positions less their indices."""


class HookedMetadata(SequenceGroupMetadata):
    """Upstream's metadata of one entry of a step, with what `vllm.worker.hook_runner` does for it.

    Args:
        runs: what a prefill computes, if it isn't the next ``token_chunk_size`` tokens: so many in sum.
        slot_copies: done before the step's forward pass, after its swaps and block copies. All of a
            step are read before any is written, so no destination may occur twice in a step.
        position_offset: the position of a token of this entry is its index in the context plus this;
            never below zero.
    """

    slot_copies: tuple[SlotCopy, ...] = ()
    runs: tuple[Run, ...] = ()
    position_offset: int = 0

    @classmethod
    def of(cls, metadata: SequenceGroupMetadata, **changes: Any) -> "HookedMetadata":
        """``metadata`` with ``changes``; every other field is the same object."""
        fields = {name: getattr(metadata, name) for name in metadata.__struct_fields__}
        return cls(**{**fields, **changes})
