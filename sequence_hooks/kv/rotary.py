# SPDX-License-Identifier: Apache-2.0
"""Moves keys that were rotated for one position to another position.

Rotary embeddings rotate each pair of a key's elements by an angle that grows with the position, so a key is moved by
rotating it by the difference of two angles. Both are taken from the rows of the model's own table, as rounded there,
and a row's length (YaRN scales it) is divided out again, so that exactly the original rotation is undone.

This module calls only methods of the given tensors, so it does not need to import torch.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Rotation(NamedTuple):
    """The rotation that moves the keys of several tokens; the first dimension of all tensors is num_tokens."""

    cos: "Tensor"
    """[num_tokens, 1, rotary_dim / 2], float32, like ``sin``."""
    sin: "Tensor"
    moves: "Tensor"
    """[num_tokens, 1, 1], bool: false where the position stays the same."""
    is_neox_style: bool

    @classmethod
    def between(cls, cos_sin: "Tensor", before: "Tensor", after: "Tensor", is_neox_style: bool) -> "Rotation":
        """The rotation that takes keys from positions ``before`` to ``after``, both [num_tokens].

        Args:
            cos_sin: The model's table, [num_positions, rotary_dim]: a row has all cosines, then all sines.
            is_neox_style: Whether a pair's elements are rotary_dim / 2 apart rather than adjacent.
        """
        cos_before, sin_before = _rows(cos_sin, before)
        cos_after, sin_after = _rows(cos_sin, after)
        length = cos_before.square() + sin_before.square()
        return cls(
            cos=(cos_after * cos_before + sin_after * sin_before) / length,
            sin=(sin_after * cos_before - cos_after * sin_before) / length,
            moves=(before != after)[:, None, None],
            is_neox_style=is_neox_style,
        )

    def apply(self, keys: "Tensor", start: int = 0) -> "Tensor":
        """A moved copy of ``keys``, [num_tokens, num_kv_heads, head_size]; computed in float32, rounded once.

        A key whose position stays the same is bitwise unchanged.

        Args:
            start: The first of the rotary_dim elements of a head that are rotated.
        """
        rotated = slice(start, start + 2 * self.cos.shape[-1])
        first, second = self._halves(keys[..., rotated].float())
        moved = keys.clone()
        moved_first, moved_second = self._halves(moved[..., rotated])
        moved_first.copy_(first * self.cos - second * self.sin)
        moved_second.copy_(second * self.cos + first * self.sin)
        return moved.where(self.moves, keys)

    def _halves(self, keys: "Tensor") -> tuple["Tensor", "Tensor"]:
        """Views of the first and the second elements of all pairs."""
        if self.is_neox_style:
            first, second = keys.chunk(2, dim=-1)
            return first, second
        return keys[..., ::2], keys[..., 1::2]


def _rows(cos_sin: "Tensor", positions: "Tensor") -> tuple["Tensor", "Tensor"]:
    """Cosines and sines of ``positions``, each [num_tokens, 1, rotary_dim / 2]."""
    cos, sin = cos_sin[positions].float().unsqueeze(1).chunk(2, dim=-1)
    return cos, sin
