# SPDX-License-Identifier: Apache-2.0
"""Upstream's metadata of a scheduled group, with what its worker has to know of injected KV."""

from typing import Any

from sequence_hooks.kv.transfer import Run, SlotCopy
from vllm.sequence import SequenceGroupMetadata


class HookedMetadata(SequenceGroupMetadata):
    """Metadata of one entry of a step, with what `vllm.worker.hook_runner` does for it.

    Args:
        runs: What a prefill computes, if it isn't the next ``token_chunk_size`` tokens; as many together.
        slot_copies: Made before the step's forward pass, after its swaps and block copies. All of a
            step's are read before any is written, so no destination may occur twice in a step.
        position_offset: The position of a token of this entry is its index in the context plus this;
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
