# SPDX-License-Identifier: Apache-2.0
"""Upstream's input processor, which also refuses requests that sequence hooks cannot serve; and what answers by outline
need of upstream's front end."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.cut_off import check_cut_off
from sequence_hooks.config.limits import flat_reading, limits_of
from sequence_hooks.serving.outlines.answer import Engine
from sequence_hooks.serving.outlines.reader import Texts
from sequence_hooks.serving.outlines.tape import Detokenizer
from sequence_hooks.tree.ids import check_request_id
from sequence_hooks.v1.prior_output import PRIOR_OUTPUT
from sequence_hooks.v1.wire import EVENT_LOG_ID, INJECTED_BY, RESUME, bare_request
from vllm.exceptions import VLLMValidationError
from vllm.logger import init_logger
from vllm.logprobs import Logprob
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.input_processor import InputProcessor

logger = init_logger(f"vllm.{__name__}")

_OURS = {PRIOR_OUTPUT, RESUME, INJECTED_BY}
"""Extra arguments that the core and the worker believe."""


class HookInputProcessor(InputProcessor):
    """Upstream's input processor for an engine with hooks. Upstream makes it; `install` turns it into this.

    It raises what upstream raises for its clients' mistakes, so that a server answers 400.
    """

    special_kwargs: SpecialKwargs

    @classmethod
    def install(cls, processor: InputProcessor, special_kwargs: SpecialKwargs) -> None:
        """Let an input processor check requests."""
        assert type(processor) is InputProcessor
        processor.__class__ = cls
        assert isinstance(processor, cls)
        processor.special_kwargs = special_kwargs

    def check_early(self, prompt: object, params: object, request_id: str) -> None:
        """Refuse what is known to be refused before a request is processed: a server has not begun its answer then.

        Raises:
            VLLMValidationError: as later, where the same is checked of whoever comes another way.
        """
        if isinstance(params, SamplingParams):
            _check_id(request_id)
            self._check_extra_args(params)
            given = prompt if isinstance(prompt, Mapping) else {}
            _check_embeds(params, given.get("prompt_embeds"))
            self._check_cut_off(params, given.get("prompt_token_ids"))

    def process_inputs(self, *args: Any, **kwargs: Any) -> EngineCoreRequest:
        """As upstream; refuses an answer that was cut off where its children are gone."""
        request = super().process_inputs(*args, **kwargs)
        self._check_cut_off(request.sampling_params, request.prompt_token_ids)
        return request

    @staticmethod
    def assign_request_id(request: EngineCoreRequest) -> None:
        """As upstream; refuses ids that children could have or that hooks use, and prompts of more than whole texts."""
        if request.sampling_params is not None:
            _check_id(request.request_id)
        if request.resumable:
            raise VLLMValidationError("with sequence hooks a prompt cannot be streamed; send it whole")
        _check_embeds(request.sampling_params, request.prompt_embeds)
        InputProcessor.assign_request_id(request)
        if request.request_id == EVENT_LOG_ID:
            raise VLLMValidationError(
                f"request_id is {EVENT_LOG_ID!r}, which sequence hooks use themselves; choose another",
                parameter="request_id",
            )

    def _validate_params(self, params: Any, *args: Any) -> Any:
        if isinstance(params, SamplingParams):
            self._check_extra_args(params)
        return super()._validate_params(params, *args)

    def _check_extra_args(self, params: SamplingParams) -> None:
        for name in _OURS & (params.extra_args or {}).keys():
            raise VLLMValidationError(
                f"extra_args has {name!r}, which sequence hooks use themselves; leave it out", parameter="extra_args"
            )
        try:
            limits = limits_of(self.special_kwargs, params.extra_args)
        except ValueError as error:
            raise VLLMValidationError(str(error), parameter="extra_args") from None
        try:
            warning = flat_reading(self.special_kwargs, limits, params.logprobs)
        except ValueError as error:
            raise VLLMValidationError(str(error), parameter="logprobs") from None
        if warning is not None:
            logger.warning_once(warning)

    def _check_cut_off(self, params: SamplingParams | None, prompt_token_ids: Sequence[int] | None) -> None:
        if params is None or prompt_token_ids is None:
            return
        limits = limits_of(self.special_kwargs, params.extra_args)
        try:
            warning = check_cut_off(self.special_kwargs, limits, params.logprobs, prompt_token_ids)
        except ValueError as error:
            raise VLLMValidationError(str(error), parameter="prompt") from None
        if warning is not None:
            logger.warning_once(warning)


def engine_of(tokenizer: Any) -> Engine:
    """What is known of an engine whose front end has this tokenizer."""

    def detokenizer(prompt_token_ids: list[int], params: Any) -> Detokenizer:
        request = bare_request("answer", prompt_token_ids, params)
        return cast(Detokenizer, IncrementalDetokenizer.from_new_request(tokenizer, request))

    return Engine(Texts(tokenizer, Logprob), detokenizer)


def _check_id(request_id: str) -> None:
    try:
        check_request_id(request_id)
    except ValueError as error:
        raise VLLMValidationError(str(error), parameter="request_id") from None


def _check_embeds(params: SamplingParams | None, prompt_embeds: Any) -> None:
    """Refuse prompts that a child could not compute anew from their tokens."""
    if params is None or not (params.extra_args or {}).get("hooks", True):
        return
    if prompt_embeds is not None and len(prompt_embeds) > 0:
        raise VLLMValidationError(
            "with sequence hooks a prompt has no prompt_embeds: children are computed from tokens; leave it out, or "
            "switch the hooks of this request off by hooks=0 in extra_args (vllm_xargs on the server)",
            parameter="prompt_embeds",
        )
