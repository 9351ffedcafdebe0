# SPDX-License-Identifier: Apache-2.0
"""A worker without a model: it copies and computes what V0's is told to, and checks all reads."""

from mytests.harness.kv import Entry, PretendedKV
from sequence_hooks.kv.transfer import slot_of
from vllm.core.hooked_metadata import HookedMetadata
from vllm.core.scheduler import SchedulerOutputs
from vllm.sequence import SequenceGroupMetadata

Blocks = dict[int, dict[int, Entry]]


class PretendedWorker:
    """What the worker's caches would hold. A `SurgicalEngine.model`."""

    def __init__(self, block_size: int) -> None:
        self.kv = PretendedKV(block_size)
        self.swapped: Blocks = {}
        self.injected: dict[int, set[int]] = {}
        """By sequence, the indices of tokens whose KV was injected and not recomputed since."""

        self.num_computed = 0
        """Tokens, so far."""

    def __call__(self, metadata: list[SequenceGroupMetadata], outputs: SchedulerOutputs) -> None:
        """Copy and compute as the worker does, and check all that attention would read."""
        _copy(self.swapped, self.kv.blocks, outputs.blocks_to_swap_in)
        _copy(self.kv.blocks, self.swapped, outputs.blocks_to_swap_out)
        _copy(self.kv.blocks, self.kv.blocks, outputs.blocks_to_copy)
        self._inject(metadata)
        for read in [self._compute(meta) for meta in metadata]:
            self.kv.check(*read)

    def _compute(self, meta: SequenceGroupMetadata) -> tuple[str, list[int], list[int], int]:
        """Write a group's chunk; returns what `PretendedKV.check` takes."""
        [(seq_id, data)] = meta.seq_data.items()
        table, start = meta.block_tables[seq_id], data.get_num_computed_tokens()
        end = start + meta.token_chunk_size
        if meta.is_prompt:
            start = max(start, min(len(meta.computed_block_nums) * self.kv.block_size, end - 1))
        runs = [(start, end, 0)]
        if isinstance(meta, HookedMetadata):
            runs = list(meta.runs) or [(start, end, meta.position_offset)]
            assert sum(last - first for first, last, _ in runs) in (meta.token_chunk_size, end - start)
        context = data.get_token_ids()[: runs[-1][1]]
        self._check_whole(seq_id, [index for start, end, _ in runs for index in range(start, end)])
        self.num_computed += sum(end - start for start, end, _ in runs)
        for start, end, offset in runs:
            self.kv.compute(context, table, start, range(start + offset, end + offset))
        return meta.request_id, context, table, runs[0][0]

    def _check_whole(self, seq_id: int, computed: list[int]) -> None:
        """Injected KV stays as a whole or not at all: tokens after a part of it would get other positions."""
        injected = self.injected.get(seq_id, set())
        if injected and computed[0] <= min(injected):
            injected.clear()
        assert not injected & set(computed), (seq_id, injected, computed)

    def _inject(self, metadata: list[SequenceGroupMetadata]) -> None:
        hooked = [meta for meta in metadata if isinstance(meta, HookedMetadata)]
        self.kv.inject([copy for meta in hooked for copy in meta.slot_copies])
        for meta in hooked:
            [(seq_id, table)] = meta.block_tables.items()
            destinations = {copy.destination for copy in meta.slot_copies}
            slots = [slot_of(table, self.kv.block_size, index) for index in range(len(table) * self.kv.block_size)]
            indices = (index for index, slot in enumerate(slots) if slot in destinations)
            self.injected.setdefault(seq_id, set()).update(indices)


def _copy(source: Blocks, destination: Blocks, pairs: list[tuple[int, int]]) -> None:
    read, written = [block for block, _ in pairs], [block for _, block in pairs]
    assert len(written) == len(set(written)), pairs
    # The pairs are copied in no particular order.
    assert source is not destination or not set(read) & set(written), pairs
    destination.update({to: dict(source.get(block, {})) for block, to in pairs})
