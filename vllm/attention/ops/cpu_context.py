# SPDX-License-Identifier: Apache-2.0
"""Attention of new tokens over a paged context, with torch SDPA.

The cache has upstream's layout for CPUs without Intel's extension: keys
[num_blocks, num_kv_heads, head_size / x, block_size, x] with x = 16 bytes' worth of elements,
values [num_blocks, num_kv_heads, head_size, block_size]. The queries, keys, values and outputs of
a step are [num_tokens, heads, head_size]. Outputs are written in place.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from vllm.attention.ops.cpu_context_plan import ContextRange
from vllm.attention.ops.cpu_shared_prefix import gather_blocks


def attend_causally(
    output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
) -> None:
    """Causal attention of one sequence without context, whose tokens see only each other."""
    attended = scaled_dot_product_attention(
        query.movedim(0, 1)[None],
        key.movedim(0, 1)[None],
        value.movedim(0, 1)[None],
        is_causal=True,
        scale=scale,
        enable_gqa=True,
    )
    output.copy_(attended[0].movedim(1, 0))


def attend_range(
    output: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    part: ContextRange,
    masks: dict[int, torch.Tensor],
    scale: float,
) -> None:
    """Attention of one sequence with context. Its new keys and values must already be in the cache."""
    keys, values = gather_blocks(key_cache, value_cache, part.blocks)
    for chunk in part.chunks:
        mask = masks[chunk.num_rows]
        output[chunk.rows] = _attend_chunk(
            query[chunk.rows],
            keys[:, chunk.keys],
            values[:, chunk.keys],
            mask[..., mask.shape[-1] - chunk.num_keys :],
            scale,
        )


def _attend_chunk(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Stacks the query heads that share a key head as rows, so that keys are read only once."""
    num_rows, num_heads, head_size = query.shape
    num_kv_heads = keys.shape[0]
    group_size = num_heads // num_kv_heads
    grouped = query.view(num_rows, num_kv_heads, group_size, head_size).permute(1, 2, 0, 3)
    attended = scaled_dot_product_attention(
        grouped.reshape(1, num_kv_heads, group_size * num_rows, head_size),
        keys[None],
        values[None],
        attn_mask=mask[None],
        scale=scale,
    )
    ungrouped = attended.reshape(num_kv_heads, group_size, num_rows, head_size)
    return ungrouped.permute(2, 0, 1, 3).reshape(num_rows, num_heads, head_size)
