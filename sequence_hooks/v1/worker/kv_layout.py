# SPDX-License-Identifier: Apache-2.0
"""Where a layer's KV cache holds each token's keys and values.

Backends lay their caches out as their kernels like it, and no two alike: blocks first or second, keys beside values or
behind them, pairs of tokens or of elements next to each other. This module knows none of these layouts: it writes
numbers through the layer's own backend, once at start-up, and finds the layout by looking where they turn up.
"""

from collections.abc import Iterator
from math import ceil, log

import torch

from sequence_hooks.kv.caches import TokenView
from sequence_hooks.v1.worker.cached_layers import CachedLayer

_DIGITS = 128
"""Numbers are written by digits: all floating-point types represent integers up to this one exactly."""


class LayoutError(ValueError):
    """A cache is laid out in a way that tokens cannot be read from it by slot."""


def view_by_token(layer: CachedLayer, num_blocks: int, block_size: int) -> tuple[TokenView, TokenView]:
    """Views of the keys and of the values of a ``layer`` whose cache is bound, and not yet in use.

    Args:
        num_blocks, block_size: As the scheduler counts them; a backend may divide each block into several.

    Raises:
        LayoutError: the cache has no such views.
    """
    cache = layer.module.kv_cache
    if not isinstance(cache, torch.Tensor) or not cache.is_floating_point() or cache.element_size() == 1:
        raise LayoutError("it does not hold one tensor of floating-point numbers of at least 16 bits")
    dim = next((dim for dim, size in enumerate(cache.shape) if size % num_blocks == 0), None)
    if dim is None or block_size % (cache.shape[dim] // num_blocks):
        raise LayoutError(f"its shape {list(cache.shape)} is not one of {num_blocks} blocks of {block_size} tokens")
    block_size //= cache.shape[dim] // num_blocks
    # The first block is upstream's null block, whose content nobody relies on.
    window = cache.narrow(dim, 0, 1)
    shapes = [(block_size, *each) for each in (layer.keys, layer.values)]
    sizes = [tokens * heads * elements for tokens, heads, elements in shapes]
    found = _find(layer, window, shapes, sum(sizes))
    views = []
    for offsets, shape in zip(torch.split(found, sizes), shapes, strict=True):
        factors = list(_factors(offsets.view(shape)))
        size = [cache.shape[dim], *(size for size, _ in factors)]
        stride = [cache.stride(dim), *(stride for _, stride in factors)]
        views.append(TokenView(cache.as_strided(size, stride, cache.storage_offset() + int(offsets[0]))))
    return views[0], views[1]


def _find(layer: CachedLayer, window: torch.Tensor, shapes: list[tuple[int, int, int]], total: int) -> torch.Tensor:
    """The place in memory of each element of the window's keys, then of its values, from the window's first one."""
    device, dtype = window.device, layer.dtype
    numbers = torch.arange(total, device=device)
    slots = torch.arange(shapes[0][0], device=device)
    read = torch.zeros(window.shape, dtype=torch.int64, device=device)
    is_written = torch.ones(window.shape, dtype=torch.bool, device=device)
    for place in range(ceil(log(total, _DIGITS))):
        window.zero_()
        # Zero is what is not written.
        digits = numbers // _DIGITS**place % _DIGITS + 1
        parts = digits.to(dtype).split([tokens * heads * elements for tokens, heads, elements in shapes])
        keys, values = (part.view(shape) for part, shape in zip(parts, shapes, strict=True))
        layer.write(keys, values, slots)
        is_written &= window > 0
        read += (window.long() - 1) * _DIGITS**place
    window.zero_()
    places = torch.zeros_like(read)
    for dim, (size, stride) in enumerate(zip(window.shape, window.stride(), strict=True)):
        steps = torch.arange(size, device=device) * stride
        places += steps.view([-1 if each == dim else 1 for each in range(window.dim())])
    found, order = read[is_written].sort()
    if not torch.equal(found, numbers):
        raise LayoutError("what is written to it is not in it as it was written")
    return places[is_written][order]


def _factors(offsets: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Sizes and strides of [tokens, inner tokens, heads, elements, inner elements] that give ``offsets``.

    Args:
        offsets: [tokens, heads, elements].
    """
    by_token, by_head, by_element = (each - each[0] for each in (offsets[:, 0, 0], offsets[0, :, 0], offsets[0, 0, :]))
    together = by_token[:, None, None] + by_head[None, :, None] + by_element[None, None, :]
    if not torch.equal(offsets - offsets[0, 0, 0], together):
        raise LayoutError("a token's place depends on its element")
    yield from _factor(by_token.tolist())
    (heads, stride), *inner = _factor(by_head.tolist())
    if any(size > 1 for size, _ in inner):
        raise LayoutError("its heads are not equally far apart")
    yield heads, stride
    yield from _factor(by_element.tolist())


def _factor(places: list[int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """An outer and an inner size, with their strides, that give ``places``."""
    for inner in (size for size in range(1, len(places) + 1) if len(places) % size == 0):
        outer_stride = places[inner] if inner < len(places) else 0
        inner_stride = places[1] if inner > 1 else 0
        expected = [index // inner * outer_stride + index % inner * inner_stride for index in range(len(places))]
        if places == expected:
            return (len(places) // inner, outer_stride), (inner, inner_stride)
    raise LayoutError("its tokens or elements are not equally far apart")
