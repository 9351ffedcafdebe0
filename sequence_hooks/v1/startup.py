# SPDX-License-Identifier: Apache-2.0
"""Checks of an engine's configuration at its start: what cannot work with sequence hooks is refused by name."""

from functools import partial
from typing import Any

import vllm.envs
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.checks import raise_for_field
from sequence_hooks.config.inert import idle_warning
from sequence_hooks.config.refusals import GENERATES, NO_ENCODER, ONE_BY_ONE, not_injected, refused
from sequence_hooks.config.tokens import resolve
from sequence_hooks.text.messages import FAULTS, describe_error
from sequence_hooks.trace.recorder import begin
from sequence_hooks.v1.connectors import unsupported_connectors
from sequence_hooks.v1.core.params import check_child, verify_params
from sequence_hooks.v1.frontend.peers import choose_addresses
from sequence_hooks.v1.releases.installed import unsupported
from sequence_hooks.v1.settings import (
    FLAT_FRONT_END,
    KEY,
    SCHEDULER,
    SERVES,
    has_private_caching,
    plain_fields,
    special_kwargs_of,
)
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.usage.usage_lib import UsageContext

logger = init_logger(f"vllm.{__name__}")


def prepare(config: VllmConfig, usage_context: UsageContext | None = None) -> None:
    """Check the hooks of ``config``, and give their tokens by id, so that no other process has to look them up.

    Args:
        usage_context: What upstream makes the engine for.

    Raises:
        ValueError: a field is invalid, or the engine cannot have hooks; the message names the field and the way out.
    """
    special_kwargs = special_kwargs_of(config)
    if special_kwargs is None:
        raise ValueError(
            f"special_kwargs: scheduler_cls is {SCHEDULER!r}, and additional_config has no {KEY!r}; on a command line, "
            "give --special-kwargs after --additional-config"
        )
    check_engine(special_kwargs, config)
    if special_kwargs.injects_kv and not config.model_config.is_hybrid:
        keep_blocks_of_windows(config)
    check_callers(special_kwargs, config, usage_context)
    model = config.model_config
    load_tokenizer = None if model.skip_tokenizer_init else partial(cached_tokenizer_from_config, model)
    special_kwargs = resolve(special_kwargs, load_tokenizer, model.get_vocab_size())
    check_child_params(special_kwargs, config)
    fields = plain_fields(special_kwargs)
    assert isinstance(config.additional_config, dict)
    noted: dict[str, Any] = {KEY: fields}
    if usage_context == UsageContext.OPENAI_API_SERVER:
        noted |= {SERVES: True} | ({FLAT_FRONT_END: True} if vllm.envs.VLLM_USE_RUST_FRONTEND else {})
    config.additional_config = {**config.additional_config, **noted}
    logger.info("Sequence hooks are on: %s", fields)
    if has_private_caching(config):
        logger.info(
            "Prefix caching is off: no request finds KV of another. Inside, upstream's is on, for children to share KV."
        )
    if warning := idle_warning(special_kwargs):
        logger.warning(warning)
    if num_servers(config) > 1 and starts_cores(config):
        choose_addresses()
    if special_kwargs.record_to is not None and starts_cores(config):
        begin(special_kwargs.record_to, model.model, special_kwargs)


DRAFTS_WITHOUT_KV = ("ngram", "suffix")
"""Methods of speculative decoding that look for drafts among the tokens alone."""


def keep_blocks_of_windows(config: VllmConfig) -> None:
    """Let layers with a window keep all their blocks, beside others with full attention: their KV is to be injected."""
    model, scheduler = config.model_config, config.scheduler_config
    if scheduler.disable_hybrid_kv_cache_manager:
        return
    scheduler.disable_hybrid_kv_cache_manager = True
    if model.get_sliding_window() is not None or model.attention_chunk_size is not None:
        logger.info(
            "Sequence hooks have set disable_hybrid_kv_cache_manager, as KV is injected: layers with a window keep "
            "the KV of the whole context."
        )


def check_child_params(special_kwargs: SpecialKwargs, config: VllmConfig) -> None:
    """Raise a `ValueError` if no child could have the configured parameters."""
    if special_kwargs.child_sampling_params is None:
        return
    tokenizer = cached_tokenizer_from_config(config.model_config)
    try:
        check_child(special_kwargs.child_sampling_params, partial(verify_params, config=config, tokenizer=tokenizer))
    except FAULTS as error:
        raise_for_field(special_kwargs, "child_sampling_params", f"correct it: {describe_error(error)}")


def check_engine(special_kwargs: SpecialKwargs, config: VllmConfig) -> None:
    """Raise a `ValueError` if the engine of ``config`` cannot have hooks."""
    model, parallel, drafts = config.model_config, config.parallel_config, config.speculative_config
    faults: list[tuple[bool, str, Any, str]] = [
        (config.scheduler_config.scheduler_cls != SCHEDULER, "scheduler_cls", config.scheduler_config.scheduler_cls,
         f"set it to {SCHEDULER!r}; sequence_hooks.v1.LLM and engine_args do"),
        (not config.cache_config.enable_prefix_caching, "enable_prefix_caching", False,
         "leave it on in a ready configuration, or use a platform that has it for this model: children share their "
         "parent's blocks through it"),
        (config.cache_config.mamba_cache_mode not in ("none", "align"), "mamba_cache_mode",
         config.cache_config.mamba_cache_mode, "set it to 'align': a child goes on from its parent's state"),
        (drafts is not None and parallel.pipeline_parallel_size > 1 and not drafts_with_stages(config),
         "pipeline_parallel_size", parallel.pipeline_parallel_size, "leave it at 1, leave speculative_config out, or "
         "use async_scheduling and VLLM_USE_V2_MODEL_RUNNER=1: upstream has drafts with stages nowhere else"),
        (model.runner_type != "generate", "runner", model.runner_type, GENERATES),
        (model.is_encoder_decoder, "model", model.model, NO_ENCODER),
        (parallel.prefill_context_parallel_size > 1, "prefill_context_parallel_size",
         parallel.prefill_context_parallel_size, "leave it at 1"),
        (parallel.decode_context_parallel_size > 1, "decode_context_parallel_size",
         parallel.decode_context_parallel_size, "leave it at 1: a fork's last block would lie on several ranks"),
        (model.is_diffusion, "model", model.model, ONE_BY_ONE),
        (model.return_sampling_mask, "return_sampling_mask", True, "leave it out: a join's tokens have none"),
        *unsupported_connectors(config),
        *unsupported(config),
    ]  # fmt: skip
    for is_fault, name, value, way_out in faults:
        if is_fault:
            raise ValueError(refused(f"{name}={value!r}", way_out))
    if special_kwargs.injects_kv:
        check_injection(special_kwargs, config)


def drafts_with_stages(config: VllmConfig) -> bool:
    """Whether upstream can speculate with several stages. Elsewhere its first stage has no drafter, or it schedules
    drafts before the token that they follow."""
    return config.use_v2_model_runner and bool(config.scheduler_config.async_scheduling)


def check_injection(special_kwargs: SpecialKwargs, config: VllmConfig) -> None:
    """Raise a `ValueError` if children's KV cannot be injected, as far as the configuration tells; workers try it."""
    cache_dtype = config.cache_config.cache_dtype
    drafts = config.speculative_config
    if drafts is not None and drafts.method not in DRAFTS_WITHOUT_KV and special_kwargs.position_rule == "overlap":
        # A drafter computes its slots from positions, which differ there from a token's index.
        way_out = f"leave position_rule out, or use {' or '.join(map(repr, DRAFTS_WITHOUT_KV))}"
        kind = f"position_rule='overlap' and speculative_config.method={drafts.method!r}, which has KV of its own"
        raise ValueError(not_injected(kind, way_out))
    # In 0.28 and 0.29 these dimensions are no M-RoPE yet.
    num_dims = getattr(config.model_config, "uses_xdrope_dim", 0)
    if cache_dtype not in ("auto", "float16", "bfloat16"):
        raise ValueError(not_injected(f"kv_cache_dtype={cache_dtype!r}: keys are moved to other positions unrounded"))
    if num_dims:
        raise ValueError(not_injected(f"uses_xdrope_dim={num_dims}: keys are not moved in these dimensions"))


def check_callers(special_kwargs: SpecialKwargs, config: VllmConfig, usage_context: UsageContext | None) -> None:
    """Raise a `ValueError` for fields that need a caller or one core, where ``config`` has others."""
    if usage_context == UsageContext.LLM_CLASS and special_kwargs.sync_resume == "manual":
        raise_for_field(
            special_kwargs, "sync_resume", "use 'auto': LLM.generate could never return, because nobody can resume"
        )
    if usage_context == UsageContext.OPENAI_API_SERVER and vllm.envs.VLLM_USE_RUST_FRONTEND:
        check_flat_front_end(special_kwargs)
    if special_kwargs.record_to is not None and config.parallel_config.data_parallel_size > 1:
        raise_for_field(
            special_kwargs, "record_to", "leave it out, or use no data parallelism: a file holds one engine's run"
        )


def check_flat_front_end(special_kwargs: SpecialKwargs) -> None:
    """Raise a `ValueError` for fields that need a front end that knows trees."""
    way_out = "leave it out, or unset VLLM_USE_RUST_FRONTEND: only upstream's front end in Python "
    needs = (
        (special_kwargs.sync_resume == "manual", "sync_resume", "has a route to resume"),
        (special_kwargs.live_page, "live_page", "shows trees"),
        (special_kwargs.has_outlines, "protocol", "answers by outline"),
    )
    for is_set, name, why in needs:
        if is_set:
            raise_for_field(special_kwargs, name, way_out + why)


def starts_cores(config: VllmConfig) -> bool:
    """Whether the cores are started by the process that asks; if several servers share them, another one does it."""
    return num_servers(config) == 1 or server_number(config) < 0


def server_number(config: VllmConfig) -> int:
    """The number of this server among those that share the cores, from 0; negative where no server is."""
    return int(config.parallel_config._api_process_rank)


def num_servers(config: VllmConfig) -> int:
    """The number of servers that share the cores."""
    return int(config.parallel_config._api_process_count)
