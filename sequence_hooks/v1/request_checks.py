# SPDX-License-Identifier: Apache-2.0
"""What sequence hooks refuse of a request: where its front end is one of ours, before its answer begins; else in the
engine's core.

What is refused is refused by upstream's error for its clients' mistakes, so that a server answers 400.
"""

from collections.abc import Sequence
from typing import Any

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.cut_off import check_cut_off
from sequence_hooks.config.limits import flat_reading, limits_of
from sequence_hooks.tree.ids import check_request_id
from sequence_hooks.v1.prior_output import PRIOR_OUTPUT
from sequence_hooks.v1.wire import EVENT_LOG_ID, INJECTED_BY, RESUME
from vllm.exceptions import VLLMValidationError
from vllm.logger import init_logger
from vllm.sampling_params import SamplingParams

logger = init_logger(f"vllm.{__name__}")

_OURS = {PRIOR_OUTPUT, RESUME, INJECTED_BY}
"""Extra arguments that the core and the worker believe."""


def check_id(request_id: str) -> None:
    """Refuse an id that a child could have."""
    try:
        check_request_id(request_id)
    except ValueError as error:
        raise VLLMValidationError(str(error), parameter="request_id") from None


def check_id_of_engine(request_id: str) -> None:
    """Refuse an id, as the engine has it, that hooks use themselves."""
    if request_id == EVENT_LOG_ID:
        raise VLLMValidationError(
            f"request_id is {EVENT_LOG_ID!r}, which sequence hooks use themselves; choose another",
            parameter="request_id",
        )


def check_whole(is_resumable: bool) -> None:
    """Refuse a prompt that comes in parts."""
    if is_resumable:
        raise VLLMValidationError("with sequence hooks a prompt cannot be streamed; send it whole")


def check_embeds(params: SamplingParams | None, prompt_embeds: Any) -> None:
    """Refuse a prompt that a child could not compute anew from its tokens."""
    if params is None or not (params.extra_args or {}).get("hooks", True):
        return
    if prompt_embeds is not None and len(prompt_embeds) > 0:
        raise VLLMValidationError(
            "with sequence hooks a prompt has no prompt_embeds: children are computed from tokens; leave it out, or "
            "switch the hooks of this request off by hooks=0 in extra_args (vllm_xargs on the server)",
            parameter="prompt_embeds",
        )


def check_extra_args(special_kwargs: SpecialKwargs, params: SamplingParams) -> None:
    """Refuse limits that are none, and what only our own code may say; warn of log-probabilities that are read flat."""
    for name in _OURS & (params.extra_args or {}).keys():
        raise VLLMValidationError(
            f"extra_args has {name!r}, which sequence hooks use themselves; leave it out", parameter="extra_args"
        )
    try:
        limits = limits_of(special_kwargs, params.extra_args)
    except ValueError as error:
        raise VLLMValidationError(str(error), parameter="extra_args") from None
    try:
        warning = flat_reading(special_kwargs, limits, params.logprobs)
    except ValueError as error:
        raise VLLMValidationError(str(error), parameter="logprobs") from None
    if warning is not None:
        logger.warning_once(warning)


def check_prompt(
    special_kwargs: SpecialKwargs, params: SamplingParams | None, prompt_token_ids: Sequence[int] | None
) -> None:
    """Refuse an answer that was cut off where its children are gone, or warn of it. Extra arguments are valid."""
    if params is None or prompt_token_ids is None:
        return
    limits = limits_of(special_kwargs, params.extra_args)
    try:
        warning = check_cut_off(special_kwargs, limits, params.logprobs, prompt_token_ids)
    except ValueError as error:
        raise VLLMValidationError(str(error), parameter="prompt") from None
    if warning is not None:
        logger.warning_once(warning)
