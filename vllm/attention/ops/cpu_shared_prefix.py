# SPDX-License-Identifier: Apache-2.0
"""Attention of several rows over a common prefix, which is gathered once for all of them, and kept.

The caches are laid out as `vllm.attention.ops.cpu_context` says. A row sees its group's prefix and
its own tail. The decode kernel attends to the tail; its result and the prefix's are weighted by the
log-sum-exps of both, which gives the softmax over prefix and tail.
"""

import math
from typing import NamedTuple

import torch

from vllm.attention.ops.cpu_shared_prefix_plan import PrefixGroup

# torch's only CPU attention that returns the log-sum-exp. It keeps scores in float32.
_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

# exp2 rather than exp, for which torch calls MKL: that wakes all threads even for the smallest tensor.
LOG2_E = math.log2(math.e)


class Gathered(NamedTuple):
    """Keys and values of consecutive blocks, each [num_kv_heads, num_tokens, head_size]."""

    keys: torch.Tensor
    values: torch.Tensor


class KeptPrefixes:
    """One layer's prefixes, as gathered in its last step.

    A copy always equals what the cache holds: it is used only in the very next step, and only if two
    sequences of that step see all of its blocks and none of the step's slots is in them. Whatever else is
    written in between (a block copied on write, or injected KV) has a single holder in that step.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, Gathered] = {}
        self._address = 0

    def of(self, groups: tuple[PrefixGroup, ...], key_cache: torch.Tensor, value_cache: torch.Tensor) -> list[Gathered]:
        """Return each group's prefix, and drop all others."""
        keys = [group.prefix_key for group in groups]
        if self._address != key_cache.data_ptr():  # another virtual engine's cache
            self._kept.clear()
            self._address = key_cache.data_ptr()
        self._kept = {key: self._kept[key] for key in keys if key in self._kept}
        for key, group in zip(keys, groups, strict=True):
            if key not in self._kept:
                self._kept[key] = gather_blocks(key_cache, value_cache, group.prefix)
        return [self._kept[key] for key in keys]

    def drop(self) -> None:
        """Drop all prefixes, for a step without groups."""
        self._kept.clear()


def attend_group(
    output: torch.Tensor,
    query: torch.Tensor,
    prefix: Gathered,
    key_cache: torch.Tensor,
    group: PrefixGroup,
    scale: float,
) -> None:
    """Add the prefix to the group's rows of ``output``, which so far cover only their tails."""
    num_rows, (num_kv_heads, _, head_size) = group.rows.numel(), prefix.keys.shape

    def by_key_head(rows: torch.Tensor) -> torch.Tensor:
        return rows.index_select(0, group.rows).view(num_rows, num_kv_heads, -1, head_size).transpose(0, 1)

    # Stack the rows and query heads that share a key head, so that keys are read only once.
    grouped = by_key_head(query).reshape(num_kv_heads, -1, head_size)
    seen, seen_lse = _attend(grouped[None], prefix.keys[None], prefix.values[None], scale=scale)
    own = by_key_head(output)
    weight = _tail_weight(grouped.float() * (scale * LOG2_E), seen_lse[0] * LOG2_E, key_cache, group)
    share = (1 - 1 / (1 + weight)).view(*own.shape[:3], 1)
    joined = torch.lerp(seen.view(own.shape).float(), own.float(), share).to(output.dtype)
    output.index_copy_(0, group.rows, joined.transpose(0, 1).reshape(num_rows, -1, head_size))


def _tail_weight(
    query: torch.Tensor, prefix_lse: torch.Tensor, key_cache: torch.Tensor, group: PrefixGroup
) -> torch.Tensor:
    """The tails' sums of exponentials, as multiples of the prefix's; infinite if they overflow float32.

    ``query`` is [num_kv_heads, num_rows * group_size, head_size], ``prefix_lse`` and the result have
    the same rows; all are float32. Scores are logarithms to base 2.
    """
    num_kv_heads, _, head_size = query.shape
    num_products = num_kv_heads * group.rows.numel()
    keys = _gather_keys(key_cache, group.tails.flatten()).view(num_products, -1, head_size)
    scores = torch.baddbmm(
        prefix_lse.reshape(num_products, -1, 1),
        query.reshape(num_products, -1, head_size),
        keys.float().transpose(1, 2),
        beta=-1,
    )
    scores.view(num_kv_heads, *group.unseen.shape[:1], -1, scores.shape[-1]).masked_fill_(group.unseen, -torch.inf)
    return scores.exp2_().sum(-1)


def gather_blocks(key_cache: torch.Tensor, value_cache: torch.Tensor, blocks: torch.Tensor) -> Gathered:
    """Copies of the keys and values in ``blocks``."""
    values = value_cache.index_select(0, blocks).permute(1, 0, 3, 2)
    return Gathered(_gather_keys(key_cache, blocks), values.flatten(1, 2).contiguous())


def _gather_keys(key_cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """[num_kv_heads, num_tokens, head_size]."""
    # Gather whole blocks, and then move 16 bytes at a time: several times faster than element by element.
    keys = key_cache.view(torch.complex128).squeeze(-1).index_select(0, blocks).permute(1, 0, 3, 2)
    return keys.contiguous().view(key_cache.dtype).flatten(1, 2)
