# SPDX-License-Identifier: Apache-2.0
"""How far a rotated key may be from the exact one: a few roundings of the pair that an element is rotated in."""

import torch

from mytests.harness.kv_copies import RotaryShape

ROUNDING = {torch.float32: 2**-24, torch.bfloat16: 2**-8}
"""The greatest relative error of rounding to a type."""

NUM_ROUNDINGS = {torch.float32: 8, torch.bfloat16: 4}
"""Of one rotation: of its table, its products and their sum."""


def rounding_of(dtype: torch.dtype) -> float:
    """The greatest error of one rotation, relative to the length of a pair."""
    return NUM_ROUNDINGS[dtype] * ROUNDING[dtype]


def lengths_of_pairs(keys: torch.Tensor, shape: RotaryShape) -> torch.Tensor:
    """For each element, the length of the pair that it is rotated in, which bounds its rounding error."""
    squares = keys[..., : shape.rotary_dim].double().square()
    if shape.is_neox_style:
        return squares.unflatten(-1, (2, -1)).sum(-2).sqrt().repeat(1, 1, 2)
    return squares.unflatten(-1, (-1, 2)).sum(-1).sqrt().repeat_interleave(2, -1)


def assert_rotated(keys: torch.Tensor, expected: torch.Tensor, shape: RotaryShape, num_moves: int = 1) -> None:
    """The rotated part of ``keys`` is the ``expected`` one.

    Args:
        keys: [num_tokens, num_kv_heads, head_size], of the type that they were computed in.
        num_moves: The rotations that have come between both.
    """
    rotated, exact = (each[..., : shape.rotary_dim].double() for each in (keys, expected))
    bound = num_moves * rounding_of(keys.dtype) * lengths_of_pairs(expected, shape)
    error = (rotated - exact).abs()
    assert bool((error <= bound).all()), float((error / bound).max())
