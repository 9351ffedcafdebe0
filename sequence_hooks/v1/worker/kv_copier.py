# SPDX-License-Identifier: Apache-2.0
"""Copies a model's KV from slot to slot in all its layers, and moves the keys to their new positions."""

from collections.abc import Iterator
from typing import Any

import torch

from sequence_hooks.kv.caches import Layer, copy_slots
from sequence_hooks.v1.worker.cached_layers import cached_layer
from sequence_hooks.v1.worker.keys import KeyCheck, refuse
from sequence_hooks.v1.worker.kv_layout import LayoutError, view_by_token


class KVCopier:
    """Copies KV between slots of a model's caches."""

    def __init__(self, layers: list[Layer]) -> None:
        self._layers = layers

    @classmethod
    def of(cls, model_runner: Any) -> "KVCopier":
        """The copier of either of upstream's model runners, whose caches must be bound, and not yet in use.

        Raises:
            ValueError: the keys of some layer cannot be moved, or its cache cannot be read by token.
        """
        return cls(list(_layers_of(model_runner)))

    @torch.inference_mode()
    def copy(self, slot_copies: torch.Tensor) -> None:
        """See `sequence_hooks.kv.caches.copy_slots`."""
        copy_slots(self._layers, slot_copies)


def _layers_of(model_runner: Any) -> Iterator[Layer]:
    config, caches = model_runner.vllm_config, model_runner.kv_cache_config
    modules, model = config.compilation_config.static_forward_context, config.model_config
    num_dims = model.mrope_num_dims if model.uses_mrope else None
    check = KeyCheck(model_runner.get_model(), model.get_hidden_size(), model.max_model_len, num_dims)
    seen, num_moved = set(), 0
    for group in caches.kv_cache_groups:
        for name in group.layer_names:
            layer = cached_layer(modules[name])
            if layer is None:
                refuse(f"{type(modules[name]).__name__}, as in {name}")
            # Layers may share a cache.
            if layer.module.kv_cache.data_ptr() in seen:
                continue
            seen.add(layer.module.kv_cache.data_ptr())
            part = check.rotated_part(name, layer)
            num_moved += part is not None
            try:
                keys, values = view_by_token(layer, caches.num_blocks, group.kv_cache_spec.block_size)
            except LayoutError as error:
                refuse(f"the KV cache of {type(layer.module.impl).__name__}, as in {name}: {error}")
            yield Layer(keys, values, *(part or (None,)))
    if not num_moved:
        refuse(
            "a model none of whose layers rotates its keys, as its positions are part of what they are computed from"
        )
