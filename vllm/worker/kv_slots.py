# SPDX-License-Identifier: Apache-2.0
"""Keys and values of single tokens in a layer's KV cache, by slot.

The caches of V0's backends are accessed through views of one shape, ``[num_blocks, block_size,
num_kv_heads, *head]``, where ``head`` depends on the backend: ``(head_size,)``, or
``(head_size / x, x)`` for the keys of paged attention.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

import vllm.attention.ops.ipex_attn as cpu_ops
import vllm.attention.ops.paged_attn as gpu_ops
from vllm.attention import Attention
from vllm.worker.hook_workers import refusal


class Places(NamedTuple):
    """The places of tokens: for each, its block and its offset in the block, [num_tokens]."""

    blocks: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of(cls, slots: torch.Tensor, block_size: int) -> "Places":
        return cls(slots // block_size, slots % block_size)


class TokenCache(NamedTuple):
    """Views of a layer's cache, each ``[num_blocks, block_size, num_kv_heads, *head]``, that share its memory."""

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def block_size(self) -> int:
        return self.keys.shape[1]


def read(cache: torch.Tensor, places: Places) -> torch.Tensor:
    """The keys or values at ``places``, as a copy, [num_tokens, num_kv_heads, head_size]."""
    return cache[places].flatten(2)


def write(cache: torch.Tensor, places: Places, rows: torch.Tensor) -> None:
    """Put keys or values, [num_tokens, num_kv_heads, head_size], at ``places``. No place may occur twice."""
    cache[places] = rows.unflatten(2, cache.shape[3:])


def open_cache(attention: Attention, kv_cache: torch.Tensor) -> TokenCache:
    """A view by token of ``kv_cache``, as the cache engine made it for this layer."""
    return _LAYOUTS[attention.backend.name](kv_cache, attention.num_kv_heads, attention.head_size)


def check_layout(attention: Attention) -> None:
    """Raise a ValueError if the layer's cache cannot be read and written here."""
    backend = attention.backend
    if backend is None or backend.name not in _LAYOUTS:
        raise refusal(f"the KV cache of {type(attention.impl).__name__}")
    if backend.name == "TORCH_SDPA" and cpu_ops._use_ipex:
        raise refusal("the KV cache of intel_extension_for_pytorch")
    if attention.kv_cache_dtype != "auto":
        raise refusal(f"a quantized KV cache (kv_cache_dtype={attention.kv_cache_dtype!r})")


def _paged_on_cpu(kv_cache: torch.Tensor, num_kv_heads: int, head_size: int) -> TokenCache:
    return _by_token(*cpu_ops.PagedAttention.split_kv_cache(kv_cache, num_kv_heads, head_size))


def _paged_on_gpu(kv_cache: torch.Tensor, num_kv_heads: int, head_size: int) -> TokenCache:
    return _by_token(*gpu_ops.PagedAttention.split_kv_cache(kv_cache, num_kv_heads, head_size))


def _by_token(keys: torch.Tensor, values: torch.Tensor) -> TokenCache:
    """A view of keys [num_blocks, num_kv_heads, head_size / x, block_size, x] and of values
    [num_blocks, num_kv_heads, head_size, block_size].
    """
    return TokenCache(keys.permute(0, 3, 1, 2, 4), values.permute(0, 3, 1, 2))


def _token_major(kv_cache: torch.Tensor, num_kv_heads: int, head_size: int) -> TokenCache:
    """A view of a cache [2, num_blocks, block_size, num_kv_heads, head_size]."""
    return TokenCache(*kv_cache.unbind(0))


_LAYOUTS: dict[str, Callable[[torch.Tensor, int, int], TokenCache]] = {
    "TORCH_SDPA": _paged_on_cpu,
    "XFORMERS": _paged_on_gpu,
    "ROCM_FLASH": _paged_on_gpu,
    "FLASH_ATTN": _token_major,
}
