# SPDX-License-Identifier: Apache-2.0
"""A KV cache without a model: it copies and computes what the worker is told to, and checks all reads."""

from typing import NamedTuple

from sequence_hooks.kv.transfer import SlotCopy
from vllm.core.hooked_metadata import HookedMetadata
from vllm.core.scheduler import SchedulerOutputs
from vllm.sequence import SequenceGroupMetadata


class Entry(NamedTuple):
    """What one slot holds: the KV of the last token of ``context``."""

    context: tuple[int, ...]
    position: int
    is_injected: bool = False


class PretendedKV:
    """What the worker's caches would hold: in each slot the context up to its token. A `SurgicalEngine.model`."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: dict[tuple[str, int], dict[int, Entry]] = {}
        self.injected: dict[int, set[int]] = {}
        """By sequence, the indices of tokens whose KV was injected and not recomputed since."""

        self.copies: list[SlotCopy] = []
        """All that was injected so far."""

        self.num_computed = 0
        """Tokens, so far."""

    @property
    def num_injected(self) -> int:
        """The number of tokens that were injected so far."""
        return len(self.copies)

    def __call__(self, metadata: list[SequenceGroupMetadata], outputs: SchedulerOutputs) -> None:
        """Copy and compute as the worker does, and check all that attention would read."""
        self._copy("cpu", "gpu", outputs.blocks_to_swap_in)
        self._copy("gpu", "cpu", outputs.blocks_to_swap_out)
        self._copy("gpu", "gpu", outputs.blocks_to_copy)
        self._inject(metadata)
        # All groups write before any reads: a batch is computed layer by layer.
        for context, table, positions in [self._compute(meta) for meta in metadata]:
            for index in range(len(context)):
                entry = self.blocks[("gpu", table[index // self.block_size])].get(index % self.block_size)
                assert entry is not None, (index, context)
                if entry.is_injected:
                    assert entry.context[-1] == context[index], (index, context)
                else:
                    assert entry.context == context[: index + 1], (index, entry, context)
                assert positions is None or entry.position == index, (index, context)

    def _compute(self, meta: SequenceGroupMetadata) -> tuple[tuple[int, ...], list[int], bool | None]:
        """Write a group's chunk; returns its context, its block table, and whether positions are indices."""
        [(seq_id, data)] = meta.seq_data.items()
        table, start = meta.block_tables[seq_id], data.get_num_computed_tokens()
        end = start + meta.token_chunk_size
        if meta.is_prompt:
            start = max(start, min(len(meta.computed_block_nums) * self.block_size, end - 1))
        runs = [(start, end, 0)]
        if isinstance(meta, HookedMetadata):
            runs = list(meta.runs) or [(start, end, meta.position_offset)]
            assert sum(last - first for first, last, _ in runs) == meta.token_chunk_size
        context = tuple(data.get_token_ids()[: runs[-1][1]])
        self._check_whole(seq_id, [index for start, end, _ in runs for index in range(start, end)])
        self.num_computed += sum(end - start for start, end, _ in runs)
        for start, end, offset in runs:
            for index in range(start, end):
                block = self.blocks.setdefault(("gpu", table[index // self.block_size]), {})
                block[index % self.block_size] = Entry(context[: index + 1], index + offset)
        return context, table, None if any(offset for _, _, offset in runs) else True

    def _check_whole(self, seq_id: int, computed: list[int]) -> None:
        """Injected KV stays as a whole or not at all: tokens after a part of it would get other positions."""
        injected = self.injected.get(seq_id, set())
        if injected and computed[0] <= min(injected):
            injected.clear()
        assert not injected & set(computed), (seq_id, injected, computed)

    def _inject(self, metadata: list[SequenceGroupMetadata]) -> None:
        copies = [copy for meta in metadata if isinstance(meta, HookedMetadata) for copy in meta.slot_copies]
        assert len(copies) == len({copy.destination for copy in copies})
        read = [self.blocks[("gpu", copy.source // self.block_size)][copy.source % self.block_size] for copy in copies]
        for copy, entry in zip(copies, read, strict=True):
            assert entry.position == copy.source_position
            block = self.blocks.setdefault(("gpu", copy.destination // self.block_size), {})
            block[copy.destination % self.block_size] = Entry(entry.context, copy.position, is_injected=True)
        self.copies += copies
        for meta in metadata:
            if isinstance(meta, HookedMetadata):
                [(seq_id, table)] = meta.block_tables.items()
                indices = (self._index_of(copy.destination, table) for copy in meta.slot_copies)
                self.injected.setdefault(seq_id, set()).update(indices)

    def _index_of(self, slot: int, table: list[int]) -> int:
        """The index of the token in ``slot``, in the context of the sequence with ``table``."""
        return table.index(slot // self.block_size) * self.block_size + slot % self.block_size

    def _copy(self, source: str, destination: str, pairs: list[tuple[int, int]]) -> None:
        read, written = [block for block, _ in pairs], [block for _, block in pairs]
        assert len(written) == len(set(written)), pairs
        # The pairs are copied in no particular order.
        assert source != destination or not set(read) & set(written), pairs
        copied = {(destination, to): dict(self.blocks.get((source, block), {})) for block, to in pairs}
        self.blocks.update(copied)


class SeenPrompts(dict[str, list[int]]):
    """The prompt of each sequence that was scheduled, joined children included; a `SurgicalEngine.model`."""

    def __call__(self, metadata: list[SequenceGroupMetadata], outputs: SchedulerOutputs) -> None:
        for entry in outputs.scheduled_seq_groups:
            self.setdefault(entry.seq_group.request_id, list(entry.seq_group.first_seq.prompt_token_ids))
