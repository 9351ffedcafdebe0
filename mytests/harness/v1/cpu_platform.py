# SPDX-License-Identifier: Apache-2.0
"""What upstream's CPU platform leaves out of its models or computes wrongly, hooks or not, put right for tests.

It switches prefix caching and chunked prefills off for models with multi-head latent attention, and without them
nothing can fork. Since 0.29 all that they need is in its reference backend for CPUs: a prefill gathers the latent
vectors of its context, and what a token sees in them is merged with what it sees in its own chunk, as on a GPU.
"""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch

from mytests.harness.v1 import checkpoints
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.platforms import current_platform
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.attention.backends.registry import AttentionBackendEnum

_rotate = RotaryEmbedding.forward_cpu


def put_right() -> Iterator[Any]:
    """Patches, under which engines are made; on a GPU nothing is left out."""
    if not current_platform.is_cpu():
        return
    # As it is now: `mytests.harness.v1.paths` may have replaced it.
    check: Any = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def checked(platform: type, config: Any) -> None:
        """Keep prefix cache, chunks and block size as they were asked for."""
        if config.model_config is None or not config.model_config.use_mla:
            check(platform, config)
            return
        # Where the processor could choose another backend, that one would take bfloat16 alone.
        config.attention_config.backend = AttentionBackendEnum.CPU_MLA
        cache, scheduler = config.cache_config, config.scheduler_config
        block_size, caches = cache.block_size, cache.enable_prefix_caching
        chunks, num_tokens = scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens
        check(platform, config)
        cache.block_size, cache.enable_prefix_caching = block_size, caches
        scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens = chunks, num_tokens

    yield patch.object(CpuPlatform, "check_and_update_config", classmethod(checked))
    yield patch.object(RotaryEmbedding, "forward_cpu", _rotated)
    checkpoints.install()


def _rotated(
    layer: Any, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Its kernel reads other elements where heads have a dimension of their own: in latent attention, and in LFM2."""
    if query.dim() == 2:
        return _rotate(layer, positions, query, key)
    rotated: tuple[torch.Tensor, torch.Tensor | None] = layer.forward_native(positions, query, key)
    return rotated
