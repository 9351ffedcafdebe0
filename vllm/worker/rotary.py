# SPDX-License-Identifier: Apache-2.0
"""Keys that were rotated for one position, rotated for another.

Rotary embeddings turn each pair of a key's elements by an angle that grows with the position, so
that a key is moved by turning it by the difference of two angles. Both are taken from the rows of
the module's own table, as rounded there, and a row's length (YaRN scales it) is divided out again:
what is undone is exactly what was done.
"""

from typing import NamedTuple

import torch
from torch import nn

from vllm.model_executor.layers.rotary_embedding import (
    DynamicNTKAlphaRotaryEmbedding,
    DynamicNTKScalingRotaryEmbedding,
    LinearScalingRotaryEmbedding,
    Llama3RotaryEmbedding,
    NTKScalingRotaryEmbedding,
    RotaryEmbedding,
    YaRNScalingRotaryEmbedding,
)
from vllm.worker.hook_workers import refusal

# Of each, a key at position p is the pairs turned by row p of cos_sin_cache, and nothing else.
_SUPPORTED = (
    DynamicNTKAlphaRotaryEmbedding,
    DynamicNTKScalingRotaryEmbedding,
    LinearScalingRotaryEmbedding,
    Llama3RotaryEmbedding,
    NTKScalingRotaryEmbedding,
    RotaryEmbedding,
    YaRNScalingRotaryEmbedding,
)


def is_rotary(module: nn.Module) -> bool:
    """Whether ``module`` is a rotary embedding of any kind, supported or not."""
    return isinstance(module, RotaryEmbedding) or "Rotary" in type(module).__name__


def check_rotary(rotary: nn.Module, head_size: int) -> None:
    """Raise a ValueError unless keys of ``head_size`` that ``rotary`` rotated can be moved."""
    name = type(rotary).__name__
    if type(rotary) not in _SUPPORTED:
        raise refusal(name)
    if len(getattr(rotary, "scaling_factors", [1])) > 1:
        raise refusal(f"{name} of several scaling factors")
    if rotary.head_size != head_size:
        raise refusal(f"{name} of {rotary.head_size} elements in heads of {head_size}")


class Rotation(NamedTuple):
    """How keys of several tokens are moved; the tensors' first dimension is [num_tokens]."""

    cos: torch.Tensor
    """[num_tokens, 1, rotary_dim / 2], float32, like ``sin``."""
    sin: torch.Tensor
    moves: torch.Tensor
    """[num_tokens, 1, 1], bool: false where the position stays the same."""
    is_neox_style: bool

    @classmethod
    def between(cls, rotary: RotaryEmbedding, before: torch.Tensor, after: torch.Tensor) -> "Rotation":
        """The one that takes keys from positions ``before`` to ``after``, both [num_tokens]."""
        cos_before, sin_before = _rows(rotary, before)
        cos_after, sin_after = _rows(rotary, after)
        length = cos_before.square() + sin_before.square()
        return cls(
            cos=(cos_after * cos_before + sin_after * sin_before) / length,
            sin=(sin_after * cos_before - cos_after * sin_before) / length,
            moves=(before != after)[:, None, None],
            is_neox_style=rotary.is_neox_style,
        )

    def apply(self, keys: torch.Tensor) -> torch.Tensor:
        """``keys``, [num_tokens, num_kv_heads, head_size], moved; computed in float32, rounded once.

        A key that stays is the same bit for bit.
        """
        rotary_dim = 2 * self.cos.shape[-1]
        first, second = self._halves(keys[..., :rotary_dim].float())
        moved = torch.empty_like(keys)
        moved[..., rotary_dim:] = keys[..., rotary_dim:]
        moved_first, moved_second = self._halves(moved[..., :rotary_dim])
        moved_first.copy_(first * self.cos - second * self.sin)
        moved_second.copy_(second * self.cos + first * self.sin)
        return torch.where(self.moves, moved, keys)

    def _halves(self, keys: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Views of the pairs' first and second elements, which lie half a head apart or side by side."""
        if self.is_neox_style:
            return keys.chunk(2, dim=-1)
        return keys[..., ::2], keys[..., 1::2]


def _rows(rotary: RotaryEmbedding, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Cosines and sines, [num_tokens, 1, rotary_dim / 2]. The table is looked up anew: forward replaces it."""
    return rotary.cos_sin_cache[positions].float().unsqueeze(1).chunk(2, dim=-1)
