# SPDX-License-Identifier: Apache-2.0
"""Copies a model's KV from slot to slot in all its layers, and moves the keys to their new positions."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from sequence_hooks.kv.caches import Layer, copy_slots
from vllm.attention import Attention, AttentionType
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
from vllm.worker.kv_slots import check_layout, open_cache

# Upstream's modules whose keys are not what their rotary embedding returned, if the attribute has the
# value: Command R7B has layers that do not call theirs, HunYuan normalises keys after the rotation.
_KEYS_OF_THEIR_OWN = {
    "CohereAttention": ("v1", False),
    "HunYuanAttention": ("use_qk_norm", True),
    "HunYuanCrossAttention": ("use_qk_norm", True),
}

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


class KVCopier:
    """Copies KV between slots of a model's caches."""

    def __init__(self, model: nn.Module, forward_context: Mapping[str, Any]) -> None:
        """The caches are those that ``bind_kv_cache`` gives the layers, which need not have them yet.

        Args:
            forward_context: The layers of ``model`` by name, as in ``static_forward_context``.

        Raises:
            ValueError: the keys of some layer cannot be moved, or its cache cannot be written.
        """
        self._layers = list(_find_layers(model, forward_context))

    @torch.inference_mode()
    def copy(self, slot_copies: torch.Tensor, virtual_engine: int) -> None:
        """See `sequence_hooks.kv.caches.copy_slots`."""
        opened = ((open_cache(each, each.kv_cache[virtual_engine]), rotary) for each, rotary in self._layers)
        copy_slots([Layer(*views, rotary) for views, rotary in opened], slot_copies)


def _find_layers(model: nn.Module, forward_context: Mapping[str, Any]) -> Iterator[tuple[Attention, RotaryEmbedding]]:
    parents = {child: module for module in model.modules() for child in module.children()}
    for name, attention in forward_context.items():
        if isinstance(attention, Attention) and attention.attn_type == AttentionType.DECODER:
            yield attention, _rotary_of(name, attention, _owners(attention, parents))


def _owners(module: nn.Module, parents: Mapping[nn.Module, nn.Module]) -> list[nn.Module]:
    """The one or two innermost modules that contain ``module``; none if the model keeps it outside any module."""
    owners: list[nn.Module] = []
    while module in parents and len(owners) < 2:
        module = parents[module]
        owners.append(module)
    return owners


def _rotary_of(name: str, attention: Attention, owners: Iterable[nn.Module]) -> RotaryEmbedding:
    check_layout(attention)
    if attention.impl.alibi_slopes is not None:
        raise refusal(f"ALiBi, as in {name}")
    for owner in owners:
        if _has_keys_of_its_own(owner):
            raise refusal(f"{type(owner).__name__}, whose keys are not only rotated, as in {name}")
    rotary = _find_rotary(name, owners)
    check_rotary(rotary, attention.head_size)
    return rotary


def _has_keys_of_its_own(owner: nn.Module) -> bool:
    name = type(owner).__name__
    if name not in _KEYS_OF_THEIR_OWN:
        return False
    attribute, value = _KEYS_OF_THEIR_OWN[name]
    return getattr(owner, attribute) == value


def _find_rotary(name: str, owners: Iterable[nn.Module]) -> nn.Module:
    """The only rotary embedding in the first of ``owners`` that has any."""
    for owner in owners:
        children = [(each, type(each).__name__) for each in owner.children()]
        found = [each for each, kind in children if isinstance(each, RotaryEmbedding) or "Rotary" in kind]
        if len(found) > 1:
            names = ", ".join(type(module).__name__ for module in found)
            raise refusal(f"several rotary embeddings in a layer ({names}), as in {name}")
        if found:
            return found[0]
    raise refusal(f"layers without rotary embeddings, as in {name}")


def check_rotary(rotary: nn.Module, head_size: int) -> None:
    """Raise a ValueError unless keys of ``head_size`` that ``rotary`` rotated can be moved."""
    name = type(rotary).__name__
    if type(rotary) not in _SUPPORTED:
        raise refusal(name)
    if len(getattr(rotary, "scaling_factors", [1])) > 1:
        raise refusal(f"{name} of several scaling factors")
    if rotary.head_size != head_size:
        raise refusal(f"{name} of {rotary.head_size} elements in heads of {head_size}")
