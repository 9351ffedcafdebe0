# SPDX-License-Identifier: Apache-2.0
"""Which layers' keys can be moved, and by what, as the layers themselves show."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sequence_hooks.v1.worker.cached_layers import HeadsLayer
from sequence_hooks.v1.worker.keys import KeyCheck, RotatedPart

HIDDEN, HEADS, HEAD, LENGTH = 48, 2, 16, 90


class Rotary(nn.Module):
    """A rotary embedding with a table, as upstream's have one, for all of a head or less of it."""

    is_neox_style = True

    def __init__(self, base: float = 10.0, rotary_dim: int = HEAD) -> None:
        super().__init__()
        angles = torch.arange(LENGTH)[:, None] / base ** torch.linspace(0, 3, rotary_dim // 2)
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

    num_kv_heads, head_size, head_size_v, dtype = HEADS, HEAD, HEAD, torch.float32

    def __init__(self, alibi_slopes: Any = None) -> None:
        super().__init__()
        self.kv_cache = torch.zeros(1)
        self.impl = SimpleNamespace(alibi_slopes=alibi_slopes)


class Owner(nn.Module):
    """A module around it, which does to the keys what ``variant`` says."""

    def __init__(self, variant: str = "") -> None:
        super().__init__()
        self.variant = variant
        self.attn = Attention(torch.ones(HEADS) if variant == "ALiBi" else None)
        self.project = nn.Linear(HIDDEN, HEADS * HEAD)
        self.scale = torch.linspace(0.5, 2.0, HEAD)
        if variant == "no table":
            self.rotary_emb: Any = TableFree()
        elif variant in ("first half", "last half"):
            self.rotary_emb = Rotary(rotary_dim=HEAD // 2)
        elif "no rotary embedding" not in variant:
            self.rotary_emb = Rotary()
        if variant == "the second of two":
            self.first_rotary_emb, self.rotary_emb = self.rotary_emb, Rotary(base=3.0)

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> Any:
        keys = values = self.project(hidden_states).view(-1, HEADS, HEAD)
        if self.variant == "raises":
            raise RuntimeError("no forward context")
        if self.variant == "no keys":
            return keys
        keys = self.rotated(positions, keys)
        if self.variant == "scaled afterwards":
            keys = keys * self.scale
        if self.variant == "normalised without weights":
            keys = keys / keys.norm(dim=-1, keepdim=True)
        return self.attn(keys, keys.flatten(1), keys if self.variant == "rotated values" else values)

    def rotated(self, positions: torch.Tensor, keys: torch.Tensor) -> Any:
        first, last = keys.chunk(2, dim=-1)
        match self.variant:
            case "not called" | "no rotary embedding":
                return keys
            case "positions added, no rotary embedding":
                return keys + positions[:, None, None]
            case "first half":
                return torch.cat([self.rotary_emb(positions, first), last], dim=-1)
            case "last half":
                return torch.cat([first, self.rotary_emb(positions, last)], dim=-1)
            case "three components":
                assert positions.shape == (3, len(keys)) and (positions == positions[0]).all()
                return self.rotary_emb(positions[0], keys)
        return self.rotary_emb(positions, keys)


def part_of(owner: nn.Module, attn: Any, num_dims: int | None = None) -> RotatedPart | None:
    """What a worker finds for a layer."""
    return KeyCheck(nn.Sequential(owner), HIDDEN, LENGTH, num_dims).rotated_part("layers.0.attn", HeadsLayer(attn))


@pytest.mark.parametrize(
    ("variant", "first", "num_dims"),
    [
        ("no rotary embedding", None, None),
        ("not called", None, None),
        ("", 0, None),
        ("normalised without weights", 0, None),
        ("first half", 0, None),
        ("last half", HEAD // 2, None),
        ("the second of two", 0, None),
        ("three components", 0, 3),
    ],
)
def test_keys_that_are_rotated_can_be_moved(variant: str, first: int | None, num_dims: int | None) -> None:
    """All their elements or some, by whichever rotary embedding, also normalised ones; others stay as they are."""
    owner = Owner(variant)
    assert part_of(owner, owner.attn, num_dims) == (None if first is None else (owner.rotary_emb, first))
    assert "forward" not in vars(owner.attn)


class Adapted(nn.Module):
    """A layer with adapters, which cannot run before one is chosen."""

    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no adapter is chosen")


class Asking(Owner):
    """One that asks for something that upstream's modules take nothing for where a model has none."""

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor, scaling: Any) -> Any:  # type: ignore[override]
        assert scaling is None
        return super().forward(positions, hidden_states)


def test_adapters_and_other_arguments_are_left_out() -> None:
    """What adapters add is rotated with the rest."""
    owner = Asking()
    owner.project = Adapted(owner.project)  # type: ignore[assignment]
    assert part_of(owner, owner.attn) == (owner.rotary_emb, 0)
    assert "forward" not in vars(owner.project)


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        ("ALiBi", "ALiBi, as in layers.0.attn"),
        ("positions added, no rotary embedding", "Owner, whose keys do not follow a rotary embedding"),
        ("no table", "TableFreeRotaryEmbedding, which has no table"),
        ("scaled afterwards", "Owner, whose keys do not follow RotaryEmbedding"),
        ("rotated values", "Owner, whose values depend on their positions"),
        ("raises", r"Owner, whose keys cannot be tried out \(no forward context\)"),
        ("no keys", "Owner, which does not call its attention with keys"),
    ],
)
def test_others_are_refused(variant: str, reason: str) -> None:
    """The error names the layer and the way out, and the layer is as before."""
    owner = Owner(variant)
    if variant == "no table":
        owner.rotary_emb.forward = Rotary().forward
    expected = f"^special_kwargs: child_merge_strategy='kv_inject' does not work with {reason}.*; use 'concatenate'"
    with pytest.raises(ValueError, match=expected):
        part_of(owner, owner.attn)
    assert "forward" not in vars(owner.attn)


def test_a_layer_that_is_told_no_positions_is_refused() -> None:
    """Here it is in no module, and nothing tells how its keys are made."""
    with pytest.raises(ValueError, match="layers that are told no positions"):
        part_of(nn.Sequential(), Attention())
