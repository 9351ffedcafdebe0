# SPDX-License-Identifier: Apache-2.0
"""Upstream's metadata of a scheduled group, with what its worker has to know about injected KV."""

from typing import Any

from sequence_hooks.kv.transfer import Run, SlotCopy
from vllm.sequence import SequenceGroupMetadata


class HookedMetadata(SequenceGroupMetadata):
    """Metadata of one entry of a step, with what `vllm.worker.hook_runner` has to do for it.

    Args:
        runs: What a prefill computes, if not the next ``token_chunk_size`` tokens; as many tokens in total.
        slot_copies: Copies to make before the step's forward pass, after its swaps and block copies. All
            of a step's sources are read before any destination is written; no destination may occur twice.
        position_offset: Added to a token's index in the context to get its position, which is never
            below zero.
    """

    slot_copies: tuple[SlotCopy, ...] = ()
    runs: tuple[Run, ...] = ()
    position_offset: int = 0

    @classmethod
    def of(cls, metadata: SequenceGroupMetadata, **changes: Any) -> "HookedMetadata":
        """``metadata`` with ``changes``; every other field is the same object."""
        fields = {name: getattr(metadata, name) for name in metadata.__struct_fields__}
        return cls(**{**fields, **changes})
