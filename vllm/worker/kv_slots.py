# SPDX-License-Identifier: Apache-2.0
"""Which layers' KV caches can be read and written by slot, and how V0's backends lay them out."""

from collections.abc import Callable

import torch

import vllm.attention.ops.ipex_attn as cpu_ops
import vllm.attention.ops.paged_attn as gpu_ops
from sequence_hooks.kv.caches import TokenView
from vllm.attention import Attention
from vllm.worker.hook_workers import refusal

Views = tuple[TokenView, TokenView]
"""The keys and the values of one layer."""


def open_cache(attention: Attention, kv_cache: torch.Tensor) -> Views:
    """Views by token of ``kv_cache``, as the cache engine made it for this layer."""
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


def _paged_on_cpu(kv_cache: torch.Tensor, num_kv_heads: int, head_size: int) -> Views:
    return _by_token(*cpu_ops.PagedAttention.split_kv_cache(kv_cache, num_kv_heads, head_size))


def _paged_on_gpu(kv_cache: torch.Tensor, num_kv_heads: int, head_size: int) -> Views:
    return _by_token(*gpu_ops.PagedAttention.split_kv_cache(kv_cache, num_kv_heads, head_size))


def _by_token(keys: torch.Tensor, values: torch.Tensor) -> Views:
    """Views of keys [num_blocks, num_kv_heads, head_size / x, block_size, x] and of values
    [num_blocks, num_kv_heads, head_size, block_size].
    """
    return TokenView(keys.permute(0, 3, 1, 2, 4).unsqueeze(2)), TokenView(values.permute(0, 3, 1, 2).unsqueeze(2))


def _token_major(kv_cache: torch.Tensor, num_kv_heads: int, head_size: int) -> Views:
    """Views of a cache [2, num_blocks, block_size, num_kv_heads, head_size]."""
    keys, values = kv_cache.unsqueeze(3).unbind(0)
    return TokenView(keys), TokenView(values)


_LAYOUTS: dict[str, Callable[[torch.Tensor, int, int], Views]] = {
    "TORCH_SDPA": _paged_on_cpu,
    "XFORMERS": _paged_on_gpu,
    "ROCM_FLASH": _paged_on_gpu,
    "FLASH_ATTN": _token_major,
}
