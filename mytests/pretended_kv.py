# SPDX-License-Identifier: Apache-2.0
"""A KV cache without a model: who reads what, after all that the worker is told to copy and to compute."""

from vllm.core.scheduler import SchedulerOutputs
from vllm.sequence import SequenceGroupMetadata


class PretendedKV:
    """What the worker's caches would hold: in each slot the whole context up to its token. A ``model``."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: dict[tuple[str, int], dict[int, tuple[int, ...]]] = {}

    def __call__(self, metadata: list[SequenceGroupMetadata], outputs: SchedulerOutputs) -> None:
        """Move and compute as the worker does, and check all that attention would read."""
        self._copy("cpu", "gpu", outputs.blocks_to_swap_in)
        self._copy("gpu", "cpu", outputs.blocks_to_swap_out)
        self._copy("gpu", "gpu", outputs.blocks_to_copy)
        # All write before one reads: a batch is computed layer by layer.
        for context, table in [self._compute(meta) for meta in metadata]:
            for position in range(len(context)):
                block = self.blocks[("gpu", table[position // self.block_size])]
                assert block.get(position % self.block_size) == context[: position + 1], (position, context)

    def _compute(self, meta: SequenceGroupMetadata) -> tuple[tuple[int, ...], list[int]]:
        """Write a group's chunk; its context and its block table."""
        [(seq_id, data)] = meta.seq_data.items()
        table, start = meta.block_tables[seq_id], data.get_num_computed_tokens()
        end = start + meta.token_chunk_size
        if meta.is_prompt:
            start = max(start, min(len(meta.computed_block_nums) * self.block_size, end - 1))
        context = tuple(data.get_token_ids()[:end])
        for position in range(start, end):
            block = self.blocks.setdefault(("gpu", table[position // self.block_size]), {})
            block[position % self.block_size] = context[: position + 1]
        return context, table

    def _copy(self, source: str, destination: str, pairs: list[tuple[int, int]]) -> None:
        read, written = [block for block, _ in pairs], [block for _, block in pairs]
        assert len(written) == len(set(written)), pairs
        # The pairs run in no order.
        assert source != destination or not set(read) & set(written), pairs
        copied = {(destination, to): dict(self.blocks.get((source, block), {})) for block, to in pairs}
        self.blocks.update(copied)
