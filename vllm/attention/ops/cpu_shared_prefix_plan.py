# SPDX-License-Identifier: Apache-2.0
"""Plans, once per step, which rows of the decode kernel attend to a common prefix together.

Rows share a prefix if their block tables begin with the same physical blocks: those of the children of
one parent, or of sequences to which prefix caching gave the same blocks. A row is a decode, or a token
of a short prefill: in its first step a child computes its promise and its own prefix.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from vllm.attention.ops.cpu_context_plan import AttentionShape, KernelRows

# At most 1 / KEPT_PART of a layer's KV cache is kept a second time, gathered.
KEPT_PART = 4

Indices = npt.NDArray[np.int64]


class Costs(NamedTuple):
    """Times for one key head, in units of the decode kernel's time for one query head and one key.

    Measured, see docs/internals/cpu-attention.md. None of them depends much on the precision or the head size.
    """

    kernel_key: float = 0.5
    """The kernel's time for each key of each row, whatever the number of query heads."""
    prefix_key: float = 2.5
    prefix_head: float = 0.3
    """Added for each query head of each row, per key of the prefix."""
    tail_key: float = 5.0
    """Added to the kernel's time per key of a tail, for the log-sum-exp."""
    group: float = 40000.0
    """Per group and layer, for all key heads together."""


COSTS = Costs()


class PrefixGroup(NamedTuple):
    """Rows that attend to a common prefix together. Each has a tail of its own, which is never empty."""

    rows: torch.Tensor
    """int64 [num_rows]: their rows in the query."""
    prefix: torch.Tensor
    """int64 [num_prefix_blocks]. The step writes to none of them."""
    prefix_key: bytes
    """``prefix`` as bytes, to look it up by."""
    tails: torch.Tensor
    """int64 [num_rows, num_tail_blocks]; shorter tails are padded with arbitrary blocks."""
    unseen: torch.Tensor
    """bool [num_rows, 1, num_tail_blocks * block_size]: slots after the row's own in its tail."""


class SharedPlan(NamedTuple):
    """``kernel`` has the same rows as before, but only the tails of those in groups."""

    groups: tuple[PrefixGroup, ...]
    kernel: KernelRows


class _Rows(NamedTuple):
    """The kernel's rows, and the blocks that the step writes to."""

    tables: Indices
    lens: Indices
    written: Indices
    owners: Indices
    shape: AttentionShape


class _Candidate(NamedTuple):
    """Rows whose block tables begin with the same blocks, and the time that grouping saves, in units of `Costs`."""

    members: Indices
    num_blocks: int
    gain: float


def begin_alike(tables: list[list[int]]) -> bool:
    """Whether two of the block tables begin with the same block."""
    first = [table[0] for table in tables if table]
    return len(set(first)) < len(first)


def share_prefixes(kernel: KernelRows, shape: AttentionShape, slots: torch.Tensor, num_cache_blocks: int) -> SharedPlan:
    """Take out of ``kernel`` the prefixes that are faster to attend to together.

    Args:
        slots: The slots that the step writes to, int64 [num_tokens].
        num_cache_blocks: Blocks in the layer's KV cache; bounds the prefixes, whose gathered copies are kept.
    """
    # This bound does not read the tables, and rules out most small steps.
    if not shape.is_plain_causal or _saved(shape, kernel.rows.numel(), kernel.max_kv_len) <= 0:
        return SharedPlan((), kernel)
    rows = _Rows(
        kernel.block_tables.numpy().astype(np.int64),
        kernel.kv_lens.numpy().astype(np.int64),
        np.unique(slots.numpy() // shape.block_size),
        kernel.owners.numpy(),
        shape,
    )
    chosen = _within(num_cache_blocks // KEPT_PART, _best(rows, np.arange(rows.lens.size), 0))
    if not chosen:
        return SharedPlan((), kernel)
    groups = tuple(_group(rows, candidate, kernel.rows) for candidate in chosen)
    return SharedPlan(groups, _with_tails_alone(kernel, chosen, shape.block_size))


def _best(rows: _Rows, members: Indices, num_blocks: int) -> list[_Candidate]:
    """The best groups of ``members``, which share ``num_blocks`` blocks: all together, or parts that share more."""
    parts = [
        candidate
        for part in _parts(rows, members, num_blocks)
        for candidate in _best(rows, part, _num_common_blocks(rows, part))
    ]
    whole = _Candidate(members, num_blocks, _gain(rows, members, num_blocks))
    if whole.gain > sum(part.gain for part in parts):
        return [whole]
    return parts


def _parts(rows: _Rows, members: Indices, column: int) -> Iterator[Indices]:
    """The members with the same block in ``column``, if it is before their last and the step does not write it.

    Each part is of at least two sequences, on which `KeptPrefixes` relies.
    """
    members = members[_num_whole_blocks(rows, members) > column]
    blocks = rows.tables[members, column] if members.size else members
    for block in np.unique(blocks):
        part = members[blocks == block]
        if (rows.owners[part] != rows.owners[part[0]]).any() and not np.isin(block, rows.written):
            yield part


def _num_common_blocks(rows: _Rows, members: Indices) -> int:
    width = int(_num_whole_blocks(rows, members).min())
    tables = rows.tables[members, :width]
    ends = (tables != tables[0]).any(0) | np.isin(tables[0], rows.written)
    return int(ends.argmax()) if ends.any() else width


def _num_whole_blocks(rows: _Rows, members: Indices) -> Indices:
    """Blocks before the one with the row's own token."""
    return (rows.lens[members] - 1) // rows.shape.block_size


def _gain(rows: _Rows, members: Indices, num_blocks: int) -> float:
    if num_blocks == 0:
        return 0.0
    # A sequence counts once, though it may have several rows: if the group would not pay off in the next
    # step, when they are decodes, gathering its prefix does not pay off now.
    num_seqs = np.unique(rows.owners[members]).size
    prefix_len = num_blocks * rows.shape.block_size
    longest_tail = int(rows.lens[members].max()) - prefix_len
    return _saved(rows.shape, num_seqs, prefix_len) - num_seqs * longest_tail * COSTS.tail_key


def _saved(shape: AttentionShape, num_rows: int, prefix_len: int) -> float:
    """The time that ``num_rows`` save with such a prefix, and no tails. If it is positive, it grows with both."""
    kernel_key = shape.group_size + COSTS.kernel_key
    prefix_key = COSTS.prefix_key + num_rows * shape.group_size * COSTS.prefix_head
    return prefix_len * (num_rows * kernel_key - prefix_key) - COSTS.group / shape.num_kv_heads


def _within(num_blocks: int, candidates: list[_Candidate]) -> list[_Candidate]:
    """The candidates that save most, as long as their prefixes have at most ``num_blocks`` in total."""
    chosen = []
    for candidate in sorted(candidates, key=lambda candidate: -candidate.gain):
        if candidate.num_blocks <= num_blocks:
            chosen.append(candidate)
            num_blocks -= candidate.num_blocks
    return chosen


def _group(rows: _Rows, candidate: _Candidate, query_rows: torch.Tensor) -> PrefixGroup:
    members, num_blocks, _ = candidate
    block_size = rows.shape.block_size
    tail_lens = rows.lens[members] - num_blocks * block_size
    num_tail_blocks = -(-int(tail_lens.max()) // block_size)
    prefix = rows.tables[members[0], :num_blocks].copy()
    return PrefixGroup(
        rows=query_rows[torch.from_numpy(members)],
        prefix=torch.from_numpy(prefix),
        prefix_key=prefix.tobytes(),
        tails=torch.from_numpy(rows.tables[members, num_blocks : num_blocks + num_tail_blocks]),
        unseen=torch.from_numpy(np.arange(num_tail_blocks * block_size) >= tail_lens[:, None, None]),
    )


def _with_tails_alone(kernel: KernelRows, chosen: list[_Candidate], block_size: int) -> KernelRows:
    tables, lens = kernel.block_tables.clone(), kernel.kv_lens.clone()
    for members, num_blocks, _ in chosen:
        rows = torch.from_numpy(members)
        tables[rows, : tables.shape[1] - num_blocks] = kernel.block_tables[rows, num_blocks:]
        lens[rows] -= num_blocks * block_size
    return kernel._replace(block_tables=tables, kv_lens=lens, max_kv_len=int(lens.max()))
