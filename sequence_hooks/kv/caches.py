# SPDX-License-Identifier: Apache-2.0
"""Keys and values of single tokens in the caches of a model's layers, and copies of them from slot to slot.

This module calls only methods of the given tensors, so it does not need to import torch.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from sequence_hooks.kv.rotary import Rotation

if TYPE_CHECKING:
    from torch import Tensor


class TokenView(NamedTuple):
    """The keys, or the values, of a layer's cache by token."""

    cache: "Tensor"
    """[num_blocks, tokens, inner tokens, num_heads, *element], sharing the cache's memory; elements of a head may be
    divided into outer and inner ones."""

    @property
    def block_size(self) -> int:
        return self.cache.shape[1] * self.cache.shape[2]

    def read(self, slots: "Tensor") -> "Tensor":
        """The rows at ``slots``, [num_tokens], as a copy, [num_tokens, num_heads, elements]."""
        return self.cache[self._places(slots)].flatten(2)

    def write(self, slots: "Tensor", rows: "Tensor") -> None:
        """Put ``rows``, [num_tokens, num_heads, elements], at ``slots``. No slot may occur twice."""
        self.cache[self._places(slots)] = rows.view(*rows.shape[:2], *self.cache.shape[4:])

    def _places(self, slots: "Tensor") -> tuple["Tensor", "Tensor", "Tensor"]:
        block, offset = slots // self.block_size, slots % self.block_size
        inner = self.cache.shape[2]
        return block, offset // inner, offset % inner


class Layer(NamedTuple):
    """The KV cache of a layer, and the rotary embedding that made its keys."""

    keys: TokenView
    values: TokenView
    rotary: Any
    """None if the keys do not depend on their positions."""

    start: int = 0
    """The first element of a head that is rotated."""


def copy_slots(layers: Collection[Layer], slot_copies: "Tensor") -> None:
    """Copy KV in all ``layers``, and move the keys to their new positions.

    In each layer, all sources are read before any destination is written.

    Args:
        slot_copies: `SlotCopy` rows, [num_tokens, 4], int64, on the caches' device.
    """
    sources, destinations, before, after = slot_copies.unbind(1)
    rotaries = {layer.rotary for layer in layers if layer.rotary is not None}
    # Read the tables anew each time: a forward pass may replace them.
    rotations = {each: Rotation.between(each.cos_sin_cache, before, after, each.is_neox_style) for each in rotaries}
    for layer in layers:
        keys, values = layer.keys.read(sources), layer.values.read(sources)
        if layer.rotary is not None:
            keys = rotations[layer.rotary].apply(keys, layer.start)
        layer.keys.write(destinations, keys)
        layer.values.write(destinations, values)
