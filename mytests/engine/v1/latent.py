# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention with a prefix cache, on the CPU.

Upstream's CPU platform switches prefix caching and chunked prefills off for models with latent attention, and without
them nothing can fork. Since 0.29 all that they need is in its reference backend for CPUs: a prefill gathers the latent
vectors of its context, and what a token sees in them is merged with what it sees in its own chunk, as on a GPU.
"""

from typing import Any
from unittest.mock import patch

from vllm.platforms.cpu import CpuPlatform
from vllm.v1.attention.backends.registry import AttentionBackendEnum


def with_prefix_cache() -> Any:
    """A patch: engines that are made under it keep their prefix cache, chunks and block size, whatever their model."""
    check: Any = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def checked(platform: type, config: Any) -> None:
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

    return patch.object(CpuPlatform, "check_and_update_config", classmethod(checked))
