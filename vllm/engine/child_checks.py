# SPDX-License-Identifier: Apache-2.0
"""Checks `SpecialKwargs.child_sampling_params` against one model at start-up, as a request's parameters are checked."""

import torch

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.checks import raise_for_field
from sequence_hooks.text.messages import describe_error
from vllm.config import VllmConfig
from vllm.engine.child_overrides import params_of
from vllm.engine.guard import guard_processors
from vllm.engine.request_checks import ModelFacts, check_ids, check_request
from vllm.entrypoints.openai.logits_processors import get_logits_processors
from vllm.logits_process import get_bad_words_logits_processors
from vllm.model_executor.guided_decoding import get_local_guided_decoding_logits_processor
from vllm.sampling_params import SamplingParams
from vllm.transformers_utils.tokenizer import AnyTokenizer
from vllm.transformers_utils.tokenizer_group import init_tokenizer_from_configs

_FIELD = "child_sampling_params"


def check_child_params(special_kwargs: SpecialKwargs, config: VllmConfig) -> None:
    """Raise a `ValueError` if no child could have the configured parameters."""
    overrides = special_kwargs.child_sampling_params
    if overrides is None:
        return
    model = ModelFacts.of(config.model_config, config.cache_config)
    params = params_of(overrides)
    try:
        check_request(params, model)
        check_ids("stop_token_ids", params.stop_token_ids, model)
        guard_processors(params, _FIELD, None)
    except ValueError as error:
        raise_for_field(special_kwargs, _FIELD, f"correct it: {error}")
    if not (params.guided_decoding or params.logit_bias or params.allowed_token_ids or params.bad_words):
        return
    if config.model_config.skip_tokenizer_init:
        raise_for_field(
            special_kwargs, _FIELD, "and it needs a tokenizer; set skip_tokenizer_init=False, or leave it out"
        )
    tokenizer = init_tokenizer_from_configs(config.model_config, config.scheduler_config, None).tokenizer
    try:
        _take_first_step(params, tokenizer, config)
    except Exception as error:
        raise_for_field(special_kwargs, _FIELD, f"correct it: {describe_error(error).removeprefix('ValueError: ')}")


def _take_first_step(params: SamplingParams, tokenizer: AnyTokenizer, config: VllmConfig) -> None:
    """Do what a step does with the parameters that become logits processors.

    Raises:
        Exception: whatever the step would raise.
    """
    if params.guided_decoding is not None:
        decoding = config.decoding_config
        params.guided_decoding.backend = params.guided_decoding.backend or decoding.backend
        get_local_guided_decoding_logits_processor(
            params.guided_decoding, tokenizer, config.model_config, decoding.reasoning_backend
        )
    processors = get_logits_processors(params.logit_bias, params.allowed_token_ids, tokenizer)
    if params.bad_words:
        processors += get_bad_words_logits_processors(params.bad_words, tokenizer)
    for processor in processors:
        processor([], torch.zeros(config.model_config.get_vocab_size()))
