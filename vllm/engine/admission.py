# SPDX-License-Identifier: Apache-2.0
"""The checks of a request before it is queued, with hooks and without."""

from collections.abc import Mapping
from typing import Any

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.cut_off import check_cut_off
from sequence_hooks.config.limits import flat_reading, limits_of
from sequence_hooks.tree.ids import check_request_id
from vllm.engine.child_params import inherit
from vllm.engine.request_checks import ModelFacts, check_prompt, check_request, only_value_errors
from vllm.logger import init_logger
from vllm.sampling_params import SamplingParams

logger = init_logger(__name__)


def admit(
    request_id: str,
    inputs: Mapping[str, Any],
    params: object,
    special_kwargs: SpecialKwargs | None,
    model: ModelFacts,
) -> None:
    """Refuse a request that would fail once it is scheduled, or whose children would.

    Raises:
        ValueError: its id could be a child's; its prompt, parameters or limits, or its children's parameters, are
            invalid; or its prompt ends in an answer whose children are gone.
    """
    if inputs.get("type") == "token":
        check_prompt(inputs["prompt_token_ids"])
    _admit_params(request_id, params, special_kwargs, model)
    if special_kwargs is None or not isinstance(params, SamplingParams):
        return
    limits = limits_of(special_kwargs, params.extra_args)
    warning = check_cut_off(special_kwargs, limits, params.logprobs, inputs.get("prompt_token_ids", ()))
    if warning is not None:
        logger.warning_once(warning)
    if limits.hooks and inputs.get("type") == "multimodal":
        raise ValueError(
            "with sequence hooks a prompt has no multi_modal_data here, because children are computed from tokens; "
            "leave it out, switch the hooks of this request off by hooks=0 in extra_args (vllm_xargs on the server), "
            "or use the plug-in on a current vLLM, where children share it"
        )


def admit_early(engine: Any, request_id: str, params: object) -> None:
    """Refuse what `admit` refuses whatever the prompt, as long as a server may still answer with an error.

    A stand-in for an engine need not have a config; its requests pass.

    Raises:
        ValueError: as in `admit`.
    """
    config = getattr(engine, "vllm_config", None)
    if config is not None:
        with only_value_errors():
            facts = ModelFacts.of(config.model_config, config.cache_config)
            _admit_params(request_id, params, config.special_kwargs, facts)


def _admit_params(request_id: str, params: object, special_kwargs: SpecialKwargs | None, model: ModelFacts) -> None:
    if special_kwargs is not None:
        check_request_id(request_id)
    if isinstance(params, SamplingParams):
        check_request(params, model)
        if special_kwargs is not None:
            limits = limits_of(special_kwargs, params.extra_args)
            warning = flat_reading(special_kwargs, limits, params.logprobs)
            if warning is not None:
                logger.warning_once(warning)
            by_promise = special_kwargs.promise_token_id is not None or special_kwargs.promise_token is not None
            if limits.hooks and limits.max_child_depth > 0 and (by_promise or special_kwargs.named_handlers):
                _admit_children(params, special_kwargs, model)


def _admit_children(params: SamplingParams, special_kwargs: SpecialKwargs, model: ModelFacts) -> None:
    if special_kwargs.child_sampling_params is None:
        return
    child = inherit(params, special_kwargs.child_sampling_params)
    try:
        check_request(child, model)
    except ValueError as error:
        raise ValueError(f"with the server's child_sampling_params, {error}") from None
