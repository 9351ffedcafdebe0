# SPDX-License-Identifier: Apache-2.0
"""Copies of blocks: a block is all bytes of its page, in every storage.

From vLLM 0.29 on, upstream copies one view per address. Layers of different groups begin at the same addresses, and the
view of a state may be shorter than the page: if it comes first, what an attention layer has in the rest of the page is
not copied. Here the largest view of each address comes first. Upstream copies a block only where requests share a part
of it, which is rare; with hooks almost every fork does.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

_SOURCE, _COPY = 0, 1
"""The blocks that the trial uses. No request has any yet; the first one is upstream's null block."""


def attach(model_runner: Any) -> None:
    """Let either of upstream's model runners copy whole blocks; must be called once its caches are bound.

    Raises:
        ValueError: it copies less, whichever view comes first.
    """
    caches, num_blocks = model_runner.kv_caches, model_runner.kv_cache_config.num_blocks
    if copies_whole_blocks(caches, num_blocks):
        return
    # Nothing else of upstream's reads this list.
    caches.sort(key=lambda cache: sum(page[_SOURCE].numel() for page in _pages(cache, num_blocks)), reverse=True)
    if not copies_whole_blocks(caches, num_blocks):
        raise ValueError(
            "special_kwargs: this vLLM copies only a part of a block of this model's KV cache, and children would go "
            "on from wrong KV; use another release of vLLM, or a model whose layers are all of one kind"
        )


def copies_whole_blocks(caches: Sequence[Any], num_blocks: int) -> bool:
    """Whether upstream copies all bytes of a block, which is tried; both blocks of the trial are zero afterwards.

    Args:
        caches: What upstream copies: for each layer a tensor, or a list of them. One dimension counts blocks.
    """
    pages = [page for cache in caches for page in _pages(cache, num_blocks)]
    for page in pages:
        page[_SOURCE].fill_(1)
        page[_COPY].zero_()
    copy_kv_cache_blocks_inplace(caches, num_blocks, [KVCacheBlockCopy(_SOURCE, _COPY)])
    is_whole = all(bool(page[_COPY].all()) for page in pages)
    for page in pages:
        page[[_SOURCE, _COPY]] = 0
    return is_whole


def _pages(cache: Any, num_blocks: int) -> Iterator[torch.Tensor]:
    """What a layer has in each block, as bytes of the same memory: [num_blocks, parts of a block, ..., bytes]."""
    for view in cache if isinstance(cache, list | tuple) else [cache]:
        size = view.element_size()
        memory = torch.empty(0, dtype=torch.uint8, device=view.device).set_(view.untyped_storage())
        strides = [stride * size for stride in view.stride()]
        in_bytes = memory.as_strided([*view.shape, size], [*strides, 1], view.storage_offset() * size)
        dim = next(dim for dim, length in enumerate(view.shape) if length % num_blocks == 0)
        by_block = in_bytes.movedim(dim, 0)
        yield by_block.view(num_blocks, len(by_block) // num_blocks, *by_block.shape[1:])
