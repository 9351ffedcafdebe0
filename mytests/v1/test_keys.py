# SPDX-License-Identifier: Apache-2.0
"""Which layers' keys can be moved, as the layers themselves show."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sequence_hooks.v1.worker.keys import KeyCheck

HIDDEN, HEADS, HEAD, LENGTH = 48, 2, 16, 90


class Rotary(nn.Module):
    """A rotary embedding with a table, as upstream's have one."""

    is_neox_style = True

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(LENGTH)[:, None] / 10.0 ** torch.linspace(0, 3, HEAD // 2)
        self.cos_sin_cache = torch.cat([angles.cos(), angles.sin()], dim=-1)

    def forward(self, positions: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        cos, sin = self.cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)
        first, second = keys.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class TableFree(nn.Module):
    """A rotary embedding that computes its angles as it goes; ``Rotary`` is in its name."""


TableFree.__name__ = "TableFreeRotaryEmbedding"
Rotary.__name__ = "RotaryEmbedding"


class Attention(nn.Module):
    """The innermost layer, which has the cache."""

    num_kv_heads, head_size, dtype = HEADS, HEAD, torch.float32

    def __init__(self, alibi_slopes: Any = None) -> None:
        super().__init__()
        self.impl = SimpleNamespace(alibi_slopes=alibi_slopes)


class Owner(nn.Module):
    """A module around it, which does to the keys what ``variant`` says."""

    def __init__(self, variant: str = "") -> None:
        super().__init__()
        self.variant = variant
        self.attn = Attention(torch.ones(HEADS) if variant == "ALiBi" else None)
        self.project = nn.Linear(HIDDEN, HEADS * HEAD)
        self.scale = torch.linspace(0.5, 2.0, HEAD)
        if variant != "no rotary embedding":
            self.rotary_emb = TableFree() if variant == "no table" else Rotary()
        if variant == "two":
            self.rotary_emb_too = Rotary()

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> Any:
        keys = self.project(hidden_states).view(-1, HEADS, HEAD)
        if self.variant == "raises":
            raise RuntimeError("no forward context")
        if self.variant == "no keys":
            return keys
        if self.variant != "not called":
            keys = self.rotary_emb(positions, keys)
        if self.variant == "scaled afterwards":
            keys = keys * self.scale
        if self.variant == "normalised without weights":
            keys = keys / keys.norm(dim=-1, keepdim=True)
        return self.attn(keys, keys.flatten(1), keys)


def rotary_of(owner: nn.Module, layer: Any) -> Any:
    """What a worker finds for a layer."""
    return KeyCheck(owner, HIDDEN, LENGTH).rotary_of("layers.0.attn", layer)


@pytest.mark.parametrize("variant", ["", "normalised without weights"])
def test_keys_that_are_rotated_can_be_moved(variant: str) -> None:
    """Also if they are normalised afterwards, which a rotation does not change."""
    owner = Owner(variant)
    assert rotary_of(nn.Sequential(owner), owner.attn) is owner.rotary_emb
    assert "forward" not in vars(owner.attn)


class Adapted(nn.Module):
    """A layer with adapters, which cannot run before one is chosen."""

    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no adapter is chosen")


def test_adapters_are_left_out() -> None:
    """What they add is rotated with the rest."""
    owner = Owner()
    owner.project = Adapted(owner.project)  # type: ignore[assignment]
    assert rotary_of(nn.Sequential(owner), owner.attn) is owner.rotary_emb
    assert "forward" not in vars(owner.project)


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        ("ALiBi", "ALiBi, as in layers.0.attn"),
        ("no rotary embedding", "layers without rotary embeddings"),
        ("no table", "TableFreeRotaryEmbedding, which has no table"),
        ("two", "several rotary embeddings in a layer"),
        ("not called", "Owner, whose keys do not follow their RotaryEmbedding"),
        ("scaled afterwards", "Owner, whose keys do not follow their RotaryEmbedding"),
        ("raises", r"Owner, whose keys cannot be tried out \(no forward context\)"),
        ("no keys", "Owner, which does not call its attention with keys"),
    ],
)
def test_others_are_refused(variant: str, reason: str) -> None:
    """The error names the layer and the way out, and the layer is as before."""
    owner = Owner(variant)
    expected = f"^special_kwargs: child_merge_strategy='kv_inject' does not work with {reason}.*; use 'concatenate'"
    with pytest.raises(ValueError, match=expected):
        rotary_of(nn.Sequential(owner), owner.attn)
    assert "forward" not in vars(owner.attn)


def test_a_layer_in_no_module_is_refused() -> None:
    """Nothing tells how its keys are made."""
    with pytest.raises(ValueError, match="layers without rotary embeddings"):
        rotary_of(nn.Sequential(), Attention())
