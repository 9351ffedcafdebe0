# SPDX-License-Identifier: Apache-2.0
"""What sequence hooks need of the engine: arguments left open are set, and conflicting ones are refused."""

from functools import partial
from typing import Any

import vllm.envs as envs
from sequence_hooks.config import tokens
from sequence_hooks.config.inert import idle_warning
from sequence_hooks.config.refusals import GENERATES, NO_ENCODER, refused
from sequence_hooks.text.messages import abbreviated
from sequence_hooks.trace.recorder import begin
from vllm.config import SpecialKwargs, VllmConfig
from vllm.core.hook_scheduler import HookScheduler
from vllm.engine.child_checks import check_child_params
from vllm.logger import init_logger
from vllm.transformers_utils.tokenizer_group import init_tokenizer_from_configs
from vllm.utils import resolve_obj_by_qualname
from vllm.worker.hook_workers import hook_worker_for

logger = init_logger(__name__)

_SCHEDULER = f"{HookScheduler.__module__}.{HookScheduler.__qualname__}"
_UPSTREAM_SCHEDULER = "vllm.core.scheduler.Scheduler"


def prepare_args(args: Any) -> None:
    """Set what hooks need in an `EngineArgs`, before a config is made from it.

    Raises:
        ValueError: an argument is set to something that hooks cannot work with.
    """
    if envs.is_set("VLLM_USE_V1") and envs.VLLM_USE_V1:
        _refuse("VLLM_USE_V1=1", "the V1 engine has none; unset it or set VLLM_USE_V1=0")
    if args.speculative_config is not None:
        _refuse("speculative_config", "leave it unset")
    if args.num_scheduler_steps > 1:
        _refuse(f"num_scheduler_steps={args.num_scheduler_steps}", "leave it at 1")
    if args.enable_chunked_prefill is False:
        _refuse("enable_chunked_prefill=False", "a resumed sequence prefills after its KV; leave it unset")
    if args.enable_chunked_prefill is None:
        logger.info("Sequence hooks: chunked prefill is switched on")
        args.enable_chunked_prefill = True
    args.scheduler_cls = _choose_scheduler(args.scheduler_cls)


def resolve(special_kwargs: SpecialKwargs, config: VllmConfig) -> SpecialKwargs:
    """``special_kwargs`` for the model of ``config``, with every token given by its id.

    Raises:
        ValueError: the model does not support hooks, or lacks one of the tokens.
    """
    _check_config(config)
    model_config = config.model_config
    load_tokenizer = None if model_config.skip_tokenizer_init else partial(_tokenizer_of, config)
    special_kwargs = tokens.resolve(special_kwargs, load_tokenizer, model_config.get_vocab_size())
    if warning := idle_warning(special_kwargs):
        logger.warning(warning)
    check_child_params(special_kwargs, config)
    if special_kwargs.injects_kv:
        config.parallel_config.worker_cls = hook_worker_for(config.parallel_config.worker_cls)
    if special_kwargs.record_to is not None:
        begin(special_kwargs.record_to, model_config.model, special_kwargs)
    return special_kwargs


def _tokenizer_of(config: VllmConfig) -> Any:
    return init_tokenizer_from_configs(config.model_config, config.scheduler_config, None).tokenizer


def _check_config(config: VllmConfig) -> None:
    model_config, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
    if model_config.runner_type != "generate":
        _refuse(f"a model that runs as {abbreviated(model_config.runner_type)}", GENERATES)
    if model_config.is_encoder_decoder:
        _refuse("an encoder-decoder model", NO_ENCODER)
    if model_config.has_inner_state:
        _refuse("a model with recurrent state", "use a model whose state is its KV cache")
    if cache.sliding_window is not None:
        _refuse("a sliding window, where blocks are dropped", "set disable_sliding_window=True")
    if not scheduler.chunked_prefill_enabled:
        _refuse("a model or platform without chunked prefill", "use another model")
    if model_config.enable_prompt_embeds:
        _refuse("enable_prompt_embeds=True", "a child's prompt is made of token ids; leave it unset")
    if cache.enable_prefix_caching and scheduler.preemption_mode == "swap":
        _refuse("preemption_mode='swap' and prefix caching together", "leave one of them out")
    if cache.enable_prefix_caching and scheduler.max_num_batched_tokens < cache.block_size:
        least = f"a block's {cache.block_size} tokens"
        _refuse(f"max_num_batched_tokens={scheduler.max_num_batched_tokens} and prefix caching", f"raise it to {least}")
    if scheduler.send_delta_data:
        _refuse("Ray's SPMD workers, which see sampled tokens alone", "unset VLLM_USE_RAY_SPMD_WORKER")


def _choose_scheduler(chosen: str | type) -> str | type:
    if chosen == _UPSTREAM_SCHEDULER:
        return _SCHEDULER
    scheduler = resolve_obj_by_qualname(chosen) if isinstance(chosen, str) else chosen
    if not issubclass(scheduler, HookScheduler):
        _refuse(f"scheduler_cls={abbreviated(chosen)}", f"leave it unset, or derive it from {_SCHEDULER}")
    return chosen


def _refuse(what: str, way_out: str) -> None:
    raise ValueError(refused(what, way_out))
