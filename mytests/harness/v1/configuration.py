# SPDX-License-Identifier: Apache-2.0
"""Upstream's configuration of the tiny model, for tests that need no model."""

from copy import copy
from functools import cache
from typing import Any

from mytests.harness.v1.offloading import transfer_config
from sequence_hooks import SpecialKwargs
from sequence_hooks.v1.settings import PRIVATE_CACHING, engine_args
from vllm.config import LoRAConfig, SpeculativeConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs

MODEL = "examples/forkjoin-tiny"


@cache
def base_config() -> VllmConfig:
    """That of an engine without hooks; copy what you change."""
    return EngineArgs(model=MODEL, dtype="float32", enforce_eager=True).create_engine_config()


def surgical_config(engine: Any, is_async: bool) -> VllmConfig:
    config = copy(base_config())
    config.model_config = copy(config.model_config)
    config.scheduler_config = copy(config.scheduler_config)
    config.parallel_config = copy(config.parallel_config)
    config.cache_config = copy(config.cache_config)
    private = {} if engine.prefix_caching else {PRIVATE_CACHING: True}
    config.additional_config = engine_args(engine.special_kwargs)["additional_config"] | private
    if engine.num_drafts:
        config.speculative_config = SpeculativeConfig(
            method="ngram", num_speculative_tokens=engine.num_drafts, prompt_lookup_max=2
        )
    if engine.connector is not None:
        config.kv_transfer_config = transfer_config(engine.connector)
    config.lora_config = None if engine.max_loras is None else LoRAConfig(max_loras=engine.max_loras)
    model, scheduler, cache = config.model_config, config.scheduler_config, config.cache_config
    config.parallel_config.pipeline_parallel_size = engine.num_stages
    model.max_model_len = engine.max_model_len
    if engine.tokenizer is not None:
        # Upstream checks stop tokens against its model's vocabulary.
        model.model_arch_config = copy(model.model_arch_config)
        model.model_arch_config.vocab_size = engine.vocab_size
    scheduler.async_scheduling, scheduler.policy = is_async, engine.scheduling_policy
    scheduler.enable_chunked_prefill = engine.chunked_prefill
    scheduler.max_num_seqs, scheduler.max_num_batched_tokens = engine.max_num_seqs, engine.max_num_batched_tokens
    cache.num_gpu_blocks, cache.block_size = engine.num_blocks + 1, engine.block_size
    cache.mamba_cache_mode = "align"
    return config


def config_with(fields: dict[str, Any], **changes: Any) -> VllmConfig:
    """A configuration with hooks; ``changes`` are of its parts, as in ``cache_config__block_size=4``."""
    config = copy(base_config())
    arguments = engine_args(SpecialKwargs(**fields))
    changes = {"scheduler_config__scheduler_cls": arguments["scheduler_cls"], **changes}
    config.additional_config = arguments["additional_config"]
    for name, value in changes.items():
        part, _, field = name.partition("__")
        if field:
            changed = copy(getattr(config, part))
            object.__setattr__(changed, field, value)
            object.__setattr__(config, part, changed)
        else:
            object.__setattr__(config, part, value)
    return config
