# SPDX-License-Identifier: Apache-2.0
"""Injected KV on V0: the slots that a plan of `sequence_hooks.tree.injection` names, and what the worker is told."""

from collections.abc import Iterable, Iterator

from sequence_hooks.kv.transfer import SlotCopy
from sequence_hooks.tree.injection import KVCopy
from vllm.core.hooked_metadata import HookedMetadata
from vllm.core.hooked_sequence import branch_of
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
        if branch is None or branch.injected is None:
            return metadata, False
        injected, copies = branch.injected, self._slot_copies.pop(group, ())
        runs = injected.take_runs(metadata.token_chunk_size)
        offset = injected.position_offset
        if not copies and not runs and not offset:
            return metadata, False
        return HookedMetadata.of(metadata, slot_copies=copies, runs=runs, position_offset=offset), bool(copies)

    def _to_slots(self, group: SequenceGroup, copies: Iterable[KVCopy]) -> Iterator[SlotCopy]:
        branch = branch_of(group)
        assert branch is not None
        children = {child.request_id: child.sequence.seq for child in branch.children}
        for copy in copies:
            source = self._blocks.slot(children[copy.child], copy.source_index)
            destination = self._blocks.slot(group.first_seq, copy.parent_index)
            yield SlotCopy(source, destination, copy.source_position, copy.position)
