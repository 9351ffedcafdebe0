# SPDX-License-Identifier: Apache-2.0
"""Whether an engine's keys and values are those of another forward pass, but for rounding."""

from collections.abc import Iterable

import torch

ROUNDING = 2**-24
"""The greatest relative error of rounding to float32."""

NUM_ROUNDINGS = 64
"""Of a layer's largest key or value, whose products add up 128 numbers in any order."""


def assert_same_kv(
    found: Iterable[Iterable[torch.Tensor]], expected: Iterable[Iterable[torch.Tensor]], num_passed_on: int = 0
) -> None:
    """Each layer's keys and values are the ``expected`` ones; for each layer before, more roundings are allowed."""
    for index, (layer, exact_layer) in enumerate(zip(found, expected, strict=True)):
        num_roundings = NUM_ROUNDINGS + index * num_passed_on
        for numbers, exact in zip(layer, exact_layer, strict=True):
            largest = exact.abs().max().item() if exact.numel() else 0.0
            torch.testing.assert_close(numbers, exact, rtol=0, atol=num_roundings * ROUNDING * largest)
