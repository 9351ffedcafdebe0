# SPDX-License-Identifier: Apache-2.0
"""Tiny models whose KV is injected: real attention layers and rotary embeddings, and caches that a test fills.

A rotated key may be a few roundings of the pair from the exact one that each of its elements is rotated in.
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from vllm import SamplingParams
from vllm.attention import Attention
from vllm.attention.selector import _Backend
from vllm.config import CompilationConfig, ParallelConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import (
    DynamicNTKAlphaRotaryEmbedding,
    DynamicNTKScalingRotaryEmbedding,
    LinearScalingRotaryEmbedding,
    Llama3RotaryEmbedding,
    NTKScalingRotaryEmbedding,
    RotaryEmbedding,
    YaRNScalingRotaryEmbedding,
)
from vllm.sequence import SequenceData, SequenceGroupMetadata
from vllm.worker.kv_copier import KVCopier
from vllm.worker.kv_slots import Views, open_cache

NUM_POSITIONS = 512


def tiny_config() -> AbstractContextManager[None]:
    """The part of a config that layers need when they are created."""
    config: Any = SimpleNamespace(compilation_config=CompilationConfig(), parallel_config=ParallelConfig())
    return set_current_vllm_config(config)


def metadata(num_tokens: int = 3, **changes: Any) -> SequenceGroupMetadata:
    """One entry of a step, a prefill of ``num_tokens``."""
    fields = {
        "request_id": "r",
        "is_prompt": True,
        "seq_data": {0: SequenceData.from_seqs(list(range(3, 3 + num_tokens)))},
        "sampling_params": SamplingParams(temperature=0, logprobs=2),
        "block_tables": {0: [0]},
        "computed_block_nums": [],
    }
    return SequenceGroupMetadata(**{**fields, **changes})


@dataclass(frozen=True)
class RotaryShape:
    """The arguments that all rotary embeddings share."""

    head_size: int = 32
    rotary_dim: int = 32
    is_neox_style: bool = True
    dtype: torch.dtype = torch.float32

    def make(self, cls: type[RotaryEmbedding], *after_style: Any, **others: Any) -> RotaryEmbedding:
        """``after_style``: the arguments between is_neox_style and dtype."""
        shape = (self.head_size, self.rotary_dim, NUM_POSITIONS, 10000, self.is_neox_style)
        with tiny_config():
            return cls(*shape, *after_style, dtype=self.dtype, **others)


LLAMA3 = {"scaling_factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "orig_max_position": 64}
ROTARIES: dict[str, Callable[[RotaryShape], RotaryEmbedding]] = {
    "plain": lambda shape: shape.make(RotaryEmbedding),
    "linear": lambda shape: shape.make(LinearScalingRotaryEmbedding, 2.0),
    "ntk": lambda shape: shape.make(NTKScalingRotaryEmbedding, 4.0),
    "mixed ntk": lambda shape: shape.make(NTKScalingRotaryEmbedding, 4.0, mixed_b=0.75),
    "dynamic ntk": lambda shape: shape.make(DynamicNTKScalingRotaryEmbedding, 2.0),
    "dynamic ntk alpha": lambda shape: shape.make(DynamicNTKAlphaRotaryEmbedding, 1000.0),
    "yarn": lambda shape: shape.make(YaRNScalingRotaryEmbedding, 8.0),
    "llama3": lambda shape: shape.make(Llama3RotaryEmbedding, **LLAMA3),
}


class TinyAttention(nn.Module):
    """A layer as models have it: its attention and its rotary embedding."""

    def __init__(self, name: str, heads: int, head_size: int, rotary: nn.Module | None) -> None:
        super().__init__()
        self.rotary_emb = rotary
        self.attn = Attention(heads, head_size, 1.0, num_kv_heads=heads, prefix=name)


@dataclass
class TinyModel:
    """Layers with caches full of noise, each of ``num_blocks`` blocks and ``num_slots`` slots."""

    backend: str = "TORCH_SDPA"
    rotary: Callable[[RotaryShape], RotaryEmbedding] = ROTARIES["plain"]
    shape: RotaryShape = field(default_factory=RotaryShape)
    num_layers: int = 2
    num_kv_heads: int = 2
    block_size: int = 4
    num_blocks: int = 6

    def __post_init__(self) -> None:
        self.rotary_emb = self.rotary(self.shape)
        self.context: dict[str, Any] = {}
        heads, head_size = self.num_kv_heads, self.shape.head_size
        with tiny_config():
            for layer in range(self.num_layers):
                name = f"model.layers.{layer}.self_attn"
                self.context[f"{name}.attn"] = TinyAttention(name, heads, head_size, self.rotary_emb)
        self.module: Any = nn.ModuleList(self.context.values())
        self.context = {name: layer.attn for name, layer in self.context.items()}
        generator = torch.Generator().manual_seed(0)
        rest = {
            "TORCH_SDPA": (self.block_size * heads * head_size,),
            "XFORMERS": (self.block_size * heads * head_size,),
            "FLASH_ATTN": (self.block_size, heads, head_size),
        }
        for attention in self.attentions:
            attention.backend = _Backend[self.backend]
            noise = torch.randn((2, self.num_blocks, *rest[self.backend]), generator=generator)
            attention.kv_cache = [noise.to(self.shape.dtype)]

    @property
    def attentions(self) -> list[Attention]:
        return list(self.context.values())

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    def caches(self) -> list[Views]:
        return [open_cache(attention, attention.kv_cache[0]) for attention in self.attentions]

    def write_keys(self, slots: list[int], keys: torch.Tensor) -> None:
        for view, _ in self.caches():
            view.write(torch.tensor(slots), keys)

    def keys(self, slots: list[int]) -> list[torch.Tensor]:
        """Each layer's keys in these slots."""
        return [keys.read(torch.tensor(slots)) for keys, _ in self.caches()]

    def rows(self) -> list[torch.Tensor]:
        """All keys and values of each layer by slot, as they are now: [num_slots, 2, num_kv_heads, head_size]."""
        everywhere = torch.arange(self.num_slots)
        return [torch.stack([view.read(everywhere) for view in cache], dim=1) for cache in self.caches()]

    def copy_kv(self, *copies: tuple[int, int, int, int]) -> None:
        """Copy KV; each copy is (source, destination, source position, position)."""
        KVCopier(self.module, self.context).copy(torch.tensor(copies), virtual_engine=0)

    def rotate(self, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """``keys``, [num_tokens, num_kv_heads, head_size], rotated as in upstream's forward pass."""
        query, key = copy.deepcopy(keys).flatten(1), copy.deepcopy(keys).flatten(1)
        self.rotary_emb(positions.contiguous(), query, key)
        return key.view(keys.shape)


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
    """The rotated part of ``keys`` is the ``expected`` one after ``num_moves`` rotations; both are
    [num_tokens, num_kv_heads, head_size], of the type that they were computed in."""
    rotated, exact = (each[..., : shape.rotary_dim].double() for each in (keys, expected))
    bound = num_moves * rounding_of(keys.dtype) * lengths_of_pairs(expected, shape)
    error = (rotated - exact).abs()
    assert bool((error <= bound).all()), float((error / bound).max())
