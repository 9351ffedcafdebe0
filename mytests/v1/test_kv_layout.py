# SPDX-License-Identifier: Apache-2.0
"""Caches of all layouts are read and written by token, whatever their backend does with them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sequence_hooks.v1.worker.cached_layers import HeadsLayer, LatentLayer
from sequence_hooks.v1.worker.kv_layout import LayoutError, view_by_token

BLOCKS, SIZE, HEADS, HEAD = 5, 32, 2, 32
Split = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Views of keys and of values, [blocks, tokens, heads, elements]; tokens and elements may be in parts."""


def _pairs(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sixteen tokens side by side, and pairs of their elements; of the values, pairs of tokens."""
    keys, values = cache.view(BLOCKS, HEADS, 2, SIZE * HEAD).unbind(2)
    keys = keys.view(BLOCKS, HEADS, SIZE // 16, HEAD // 2, 16, 2).permute(0, 2, 4, 1, 3, 5)
    values = values.view(BLOCKS, HEADS, HEAD // 16, SIZE // 2, 16, 2).permute(0, 3, 5, 1, 2, 4)
    return keys, values


LAYOUTS: dict[str, tuple[tuple[int, ...], Split]] = {
    "keys, then values": ((2, BLOCKS, SIZE, HEADS, HEAD), lambda cache: (cache[0], cache[1])),
    "both in each block": ((BLOCKS, 2, SIZE, HEADS, HEAD), lambda cache: (cache[:, 0], cache[:, 1])),
    "heads before tokens": (
        (BLOCKS, HEADS, SIZE, 2 * HEAD),
        lambda cache: (cache[..., :HEAD].transpose(1, 2), cache[..., HEAD:].transpose(1, 2)),
    ),
    "both in each row": ((BLOCKS, SIZE, HEADS, 2 * HEAD), lambda cache: (cache[..., :HEAD], cache[..., HEAD:])),
    "elements before tokens": (
        (BLOCKS, 2, HEADS, HEAD, SIZE),
        lambda cache: (cache[:, 0].permute(0, 3, 1, 2), cache[:, 1].permute(0, 3, 1, 2)),
    ),
    "pairs, as matrix units take them": ((BLOCKS, HEADS, SIZE, 2 * HEAD), _pairs),
    "blocks of two": ((2 * BLOCKS, 2, SIZE // 2, HEADS, HEAD), lambda cache: (cache[:, 0], cache[:, 1])),
}


def layer_with(shape: tuple[int, ...], split: Split, dtype: torch.dtype = torch.bfloat16) -> Any:
    """An attention layer whose backend writes to the places that ``split`` gives."""

    def update(layer: Any, keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
        for view, rows in zip(split(cache), (keys, values), strict=True):
            size = SIZE * BLOCKS // view.shape[0]
            block, offset = slots // size, slots % size
            if view.dim() == 4:
                view[block, offset] = rows
            else:
                inner = view.shape[2]
                view[block, offset // inner, offset % inner] = rows.view(len(slots), *view.shape[3:])

    sizes, impl = {"num_kv_heads": HEADS, "head_size": HEAD, "head_size_v": HEAD}, SimpleNamespace()
    impl.do_kv_cache_update = update
    return SimpleNamespace(kv_cache=torch.zeros(shape, dtype=dtype), dtype=dtype, impl=impl, **sizes)


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_are_found_where_the_backend_writes_them(name: str) -> None:
    """They are read, and written, bit for bit, and no other slot changes."""
    layer = layer_with(*LAYOUTS[name])
    keys, values = view_by_token(HeadsLayer(layer), BLOCKS, SIZE)
    assert not layer.kv_cache.any()
    slots = torch.tensor([SIZE + 3, 4 * SIZE + 31, SIZE])
    written = torch.randn(2, 3, HEADS, HEAD).bfloat16()
    layer.impl.do_kv_cache_update(layer, *written, layer.kv_cache, slots)
    assert torch.equal(keys.read(slots), written[0]) and torch.equal(values.read(slots), written[1])
    before, elsewhere = layer.kv_cache.clone(), slots + SIZE // 2
    keys.write(elsewhere % (BLOCKS * SIZE), written[1])
    values.write(elsewhere % (BLOCKS * SIZE), written[0])
    assert torch.equal(keys.read(slots), written[0])
    assert (layer.kv_cache != before).sum() <= written.numel()
    assert torch.equal(keys.read(elsewhere % (BLOCKS * SIZE)), written[1])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_cache": torch.zeros(BLOCKS, SIZE, HEADS, 2 * HEAD, dtype=torch.uint8)}, "floating-point numbers"),
        ({"kv_cache": [torch.zeros(1)]}, "does not hold one tensor"),
        ({"kv_cache": torch.zeros(7, 7)}, "is not one of 5 blocks of 32 tokens"),
        ({"impl": SimpleNamespace(do_kv_cache_update=lambda *given: None)}, "is not in it as it was written"),
    ],
)
def test_other_caches_are_refused(changes: dict[str, Any], reason: str) -> None:
    """The error says what is wrong with them."""
    layer = layer_with(*LAYOUTS["both in each row"])
    vars(layer).update(changes)
    with pytest.raises(LayoutError, match=reason):
        view_by_token(HeadsLayer(layer), BLOCKS, SIZE)


def test_tokens_that_lie_anywhere_are_refused() -> None:
    """Here each token has a place of its own."""
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(0))
    layer = layer_with(*LAYOUTS["both in each row"])
    update = layer.impl.do_kv_cache_update
    layer.impl.do_kv_cache_update = lambda layer, keys, values, cache, slots: update(
        layer, keys, values, cache, order[slots]
    )
    with pytest.raises(LayoutError, match="equally far apart"):
        view_by_token(HeadsLayer(layer), BLOCKS, SIZE)


def test_a_latent_vector_and_what_is_rotated_with_it_lie_in_one_row() -> None:
    """The latter are the keys, of one head; the vector is the values."""
    rank, rotated = 64, 16

    def update(
        latent: torch.Tensor, keys: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, dtype: str, scale: Any
    ) -> None:
        cache.flatten(0, 1)[slots] = torch.cat([latent, keys.squeeze(1)], dim=-1)

    cache, impl = torch.zeros(BLOCKS, SIZE, rank + rotated), SimpleNamespace(do_kv_cache_update=update)
    sizes: dict[str, Any] = {"kv_lora_rank": rank, "qk_rope_head_dim": rotated}
    layer = SimpleNamespace(kv_cache=cache, kv_cache_dtype="auto", impl=impl, **sizes)
    keys, values = view_by_token(LatentLayer(layer), BLOCKS, SIZE)
    slots = torch.tensor([SIZE + 3, 4 * SIZE + 31, SIZE])
    latent, key = torch.randn(3, 1, rank), torch.randn(3, 1, rotated)
    update(latent.squeeze(1), key, layer.kv_cache, slots, "auto", 1.0)
    assert torch.equal(keys.read(slots), key) and torch.equal(values.read(slots), latent)
