# SPDX-License-Identifier: Apache-2.0
"""What the layers of a model cache of each token: what moves with its position, and what does not.

Layers differ in what they are called with and in what their backends write. Here all of them have keys, which may be
rotated, and values, which are not. Of multi-head latent attention, the keys are the part that all heads share and that
is rotated, ``k_pe``, and the values are the latent vector.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch

from vllm.model_executor.layers.attention import Attention, MLAAttention


class CachedLayer(ABC):
    """One of upstream's layers that have a cache.

    Attributes:
        module: The layer.
        keys, values: How many heads a token's keys, and its values, have, and how many elements a head has.
        dtype: That of the keys and values that the layer is called with.
    """

    keys: tuple[int, int]
    values: tuple[int, int]
    dtype: torch.dtype

    def __init__(self, module: Any) -> None:
        self.module = module

    @abstractmethod
    def called_with(self, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and the values among the arguments of the layer."""

    @abstractmethod
    def write(self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        """Let the layer's backend write to its cache.

        Args:
            keys, values: [num_tokens, heads, elements].
            slots: [num_tokens].
        """


class HeadsLayer(CachedLayer):
    """A layer that caches keys and values of heads."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.keys = (module.num_kv_heads, module.head_size)
        self.values = (module.num_kv_heads, module.head_size_v)
        self.dtype = module.dtype

    def called_with(self, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        _, keys, values = args[:3]
        return keys, values

    def write(self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        self.module.impl.do_kv_cache_update(self.module, keys, values, self.module.kv_cache, slots)


class LatentLayer(CachedLayer):
    """A layer of multi-head latent attention."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.keys = (1, module.qk_rope_head_dim)
        self.values = (1, module.kv_lora_rank)
        self.dtype = module.kv_cache.dtype

    def called_with(self, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        _, latent, keys = args[:3]
        return keys, latent

    def write(self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        module = self.module
        # The last argument, a scale, is for caches of rounded values, which are not read here.
        unscaled = torch.ones((), device=keys.device)
        module.impl.do_kv_cache_update(values.squeeze(1), keys, module.kv_cache, slots, module.kv_cache_dtype, unscaled)


def cached_layer(module: Any) -> CachedLayer | None:
    """What ``module`` caches; None if it is of another kind."""
    if isinstance(module, Attention):
        return HeadsLayer(module)
    return LatentLayer(module) if isinstance(module, MLAAttention) else None
