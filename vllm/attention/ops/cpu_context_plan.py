# SPDX-License-Identifier: Apache-2.0
"""Plans which path each sequence of a step takes through CPU attention, once per step, on integers only.

There are three paths: the paged decode kernel, one row per token; SDPA over keys gathered from the
cache; and, for a sequence without context, SDPA over the keys that the step itself computes. All
layers of the same shape share the plan.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import pad

# The kernel reads a sequence's keys once per token and query head; gathering copies them once.
# Up to about this many reads of each key by tokens after the first, the kernel is faster: measured,
# see docs/internals/cpu-attention.md.
KERNEL_MAX_EXTRA_READS = 8

# Query rows per SDPA call: bounds the size of the mask, and skips keys that none of the rows may see.
CHUNK_ROWS = 128


@dataclass(frozen=True)
class AttentionShape:
    """What a layer's plan depends on; layers with equal shapes share one plan per step.

    ``alibi_slopes`` has one slope per query head.
    """

    num_heads: int
    num_kv_heads: int
    block_size: int
    sliding_window: int | None = None
    alibi_slopes: tuple[float, ...] | None = None

    @property
    def group_size(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def is_plain_causal(self) -> bool:
        return self.sliding_window is None and self.alibi_slopes is None

    @property
    def kernel_max_rows(self) -> int:
        """The longest query that takes the decode kernel; a single token always does."""
        return 1 + KERNEL_MAX_EXTRA_READS // self.group_size

    def first_visible(self, position: int) -> int:
        """The first position that the token at ``position`` sees."""
        if self.sliding_window is None:
            return 0
        return max(0, position - self.sliding_window + 1)


@dataclass(frozen=True)
class StepSequences:
    """The sequences of one step, in the order of their rows in the query.

    ``query_lens`` and ``kv_lens`` are int64 [num_seqs], ``block_tables`` is int32
    [num_seqs, max_blocks]. ``kv_lens`` counts a sequence's context and its new tokens. The last
    ``num_fixed_decodes`` sequences are single tokens that always take the kernel.
    """

    query_lens: torch.Tensor
    kv_lens: torch.Tensor
    block_tables: torch.Tensor
    num_fixed_decodes: int


class KernelRows(NamedTuple):
    """Tokens for the decode kernel, each as a sequence of its own."""

    rows: torch.Tensor  # int64 [num_rows]: their rows in the query
    block_tables: torch.Tensor  # int32 [num_rows, max_blocks]
    kv_lens: torch.Tensor  # int32 [num_rows]: keys that the token sees, itself included
    max_kv_len: int
    owners: torch.Tensor  # int64 [num_rows]: index of the step's sequence that each belongs to


class Chunk(NamedTuple):
    """Consecutive rows of the query, and the range of their sequence's keys that they may see."""

    rows: slice
    keys: slice

    @property
    def num_rows(self) -> int:
        return self.rows.stop - self.rows.start

    @property
    def num_keys(self) -> int:
        return self.keys.stop - self.keys.start


class ContextRange(NamedTuple):
    """A sequence whose keys are gathered. Its chunks count keys from the first gathered one."""

    blocks: torch.Tensor  # int64, in the order of the sequence
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class ContextPlan:
    """One step's work: every row of the query is in exactly one of the first three fields.

    ``masks`` maps a chunk's number of rows to the widest bias that such a chunk needs. A bias
    depends only on the distance of key and query, so its last columns serve narrower chunks too:
    float32 [1 or num_kv_heads, group_size * rows, keys].
    """

    kernel: KernelRows | None
    causal: tuple[slice, ...]
    """Rows of sequences without context, which see only their own keys."""
    ranges: tuple[ContextRange, ...]
    masks: dict[int, torch.Tensor]


def make_plan(sequences: StepSequences, shape: AttentionShape) -> ContextPlan:
    by_kernel = sequences.query_lens <= shape.kernel_max_rows
    if shape.sliding_window is not None:
        by_kernel &= sequences.kv_lens <= shape.sliding_window
    by_kernel[by_kernel.numel() - sequences.num_fixed_decodes :] = True

    starts = sequences.query_lens.cumsum(0) - sequences.query_lens
    causal: list[slice] = []
    ranges: list[ContextRange] = []
    for index in (~by_kernel).nonzero().flatten().tolist():
        start = int(starts[index])
        query_len, kv_len = int(sequences.query_lens[index]), int(sequences.kv_lens[index])
        if query_len == kv_len and shape.is_plain_causal:
            causal.append(slice(start, start + query_len))
        else:
            table = sequences.block_tables[index]
            ranges.append(_range(start, query_len, kv_len, table, shape))
    return ContextPlan(
        kernel=_kernel_rows(sequences, starts, by_kernel.nonzero().flatten(), shape.block_size),
        causal=tuple(causal),
        ranges=tuple(ranges),
        masks=_masks(ranges, shape),
    )


def concatenate_tables(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Both block tables, stacked; the narrower one is padded with block 0, which is never read."""
    width = max(first.shape[1], second.shape[1])
    return torch.cat([pad(table, (0, width - table.shape[1])) for table in (first, second)])


def _kernel_rows(
    sequences: StepSequences, starts: torch.Tensor, chosen: torch.Tensor, block_size: int
) -> KernelRows | None:
    if chosen.numel() == 0:
        return None
    query_lens = sequences.query_lens[chosen]
    owners = chosen.repeat_interleave(query_lens)
    ends = query_lens.cumsum(0)
    offsets = torch.arange(owners.numel()) - (ends - query_lens).repeat_interleave(query_lens)
    kv_lens = (sequences.kv_lens - sequences.query_lens)[owners] + offsets + 1
    max_kv_len = int(kv_lens.max())
    max_blocks = -(-max_kv_len // block_size)
    return KernelRows(
        rows=starts[owners] + offsets,
        block_tables=sequences.block_tables[:, :max_blocks][owners],
        kv_lens=kv_lens.int(),
        max_kv_len=max_kv_len,
        owners=owners,
    )


def _range(start: int, query_len: int, kv_len: int, table: torch.Tensor, shape: AttentionShape) -> ContextRange:
    context_len = kv_len - query_len
    first_block = shape.first_visible(context_len) // shape.block_size
    last_block = -(-kv_len // shape.block_size)
    offset = first_block * shape.block_size
    chunks = []
    for begin in range(0, query_len, CHUNK_ROWS):
        end = min(begin + CHUNK_ROWS, query_len)
        keys = slice(shape.first_visible(context_len + begin) - offset, context_len + end - offset)
        chunks.append(Chunk(rows=slice(start + begin, start + end), keys=keys))
    return ContextRange(table[first_block:last_block].long(), tuple(chunks))


def _masks(ranges: list[ContextRange], shape: AttentionShape) -> dict[int, torch.Tensor]:
    widths: dict[int, int] = {}
    for part in ranges:
        for chunk in part.chunks:
            widths[chunk.num_rows] = max(widths.get(chunk.num_rows, 0), chunk.num_keys)
    return {rows: _mask(rows, keys, shape) for rows, keys in widths.items()}


def _mask(rows: int, keys: int, shape: AttentionShape) -> torch.Tensor:
    """The bias for ``rows`` query rows over ``keys`` keys; the last row is at the last key."""
    distance = torch.arange(keys - rows, keys)[:, None] - torch.arange(keys)
    hidden = distance < 0
    if shape.sliding_window is not None:
        hidden |= distance >= shape.sliding_window
    if shape.alibi_slopes is None:
        bias = torch.zeros(rows, keys).masked_fill_(hidden, -torch.inf)
        return bias.repeat(1, shape.group_size, 1)
    slopes = torch.tensor(shape.alibi_slopes)[:, None, None]
    bias = (-slopes * distance).masked_fill_(hidden, -torch.inf)
    return bias.view(shape.num_kv_heads, shape.group_size * rows, keys)
