# SPDX-License-Identifier: Apache-2.0
"""Which rotary embeddings have keys that `sequence_hooks.kv.rotary` can move."""

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

# In each of these, a key's pairs at position p are rotated by row p of cos_sin_cache, and nothing else changes them.
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
