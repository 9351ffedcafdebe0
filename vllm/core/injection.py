# SPDX-License-Identifier: Apache-2.0
"""Injected KV on V0: the slots of a plan of `sequence_hooks.tree.injection_plan`, and what the worker is told."""

from collections.abc import Iterable, Iterator

from sequence_hooks.kv.transfer import Run, SlotCopy
from sequence_hooks.tree.injection_plan import KVCopy
from vllm.core.hooked_metadata import HookedMetadata
from vllm.core.hooked_sequence import V0Branch, branch_of
from vllm.core.shared_blocks import SharedBlocks
from vllm.sequence import SequenceGroup, SequenceGroupMetadata


class Injection:
    """Owns the slot copies of the step that is being scheduled."""

    def __init__(self, blocks: SharedBlocks) -> None:
        self._blocks = blocks
        self._slot_copies: dict[SequenceGroup, tuple[SlotCopy, ...]] = {}

    def place(self, group: SequenceGroup, copies: Iterable[KVCopy]) -> None:
        """Let this step make ``copies``, for which ``group`` has slots now."""
        self._slot_copies[group] = tuple(self._to_slots(group, copies))

    def metadata(self, metadata: SequenceGroupMetadata, group: SequenceGroup) -> tuple[SequenceGroupMetadata, bool]:
        """``metadata`` with what its worker has to know about injected KV, and whether KV is copied in this step."""
        branch = branch_of(group)
        if branch is None:
            return metadata, False
        injected, copies = branch.injected, self._slot_copies.pop(group, ())
        if injected is not None and injected.glue:
            runs = injected.take_runs(metadata.token_chunk_size, branch.positions)
            return HookedMetadata.of(metadata, slot_copies=copies, runs=runs), bool(copies)
        runs = self._next_runs(metadata, branch)
        if len(runs) > 1:
            return HookedMetadata.of(metadata, runs=runs), False
        offset = runs[0].position_offset
        return (HookedMetadata.of(metadata, position_offset=offset) if offset else metadata), False

    def _next_runs(self, metadata: SequenceGroupMetadata, branch: V0Branch) -> tuple[Run, ...]:
        """The next tokens of a sequence, by their positions."""
        start = branch.sequence.num_computed_tokens
        end = start + metadata.token_chunk_size
        # As upstream's runners do with what is in the prefix cache.
        start = max(start, min(len(metadata.computed_block_nums) * self._blocks.block_size, end - 1))
        return tuple(branch.positions.runs(start, end))

    def _to_slots(self, group: SequenceGroup, copies: Iterable[KVCopy]) -> Iterator[SlotCopy]:
        branch = branch_of(group)
        assert branch is not None
        children = {child.request_id: child.sequence.seq for child in branch.children}
        for copy in copies:
            source = self._blocks.slot(children[copy.child], copy.source_index)
            destination = self._blocks.slot(group.first_seq, copy.parent_index)
            yield SlotCopy(source, destination, copy.source_position, copy.position)
