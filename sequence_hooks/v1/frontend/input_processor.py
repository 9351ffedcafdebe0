# SPDX-License-Identifier: Apache-2.0
"""Upstream's input processor, which also refuses requests that sequence hooks cannot serve; and what answers by outline
need of upstream's front end."""

from collections.abc import Mapping
from typing import Any, cast

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.serving.outlines.answer import Engine
from sequence_hooks.serving.outlines.reader import Texts
from sequence_hooks.serving.outlines.tape import Detokenizer
from sequence_hooks.v1.request_checks import (
    check_embeds,
    check_extra_args,
    check_id,
    check_id_of_engine,
    check_prompt,
    check_whole,
)
from sequence_hooks.v1.wire import bare_request
from vllm.logprobs import Logprob
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.input_processor import InputProcessor


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
            check_id(request_id)
            check_extra_args(self.special_kwargs, params)
            given = prompt if isinstance(prompt, Mapping) else {}
            check_embeds(params, given.get("prompt_embeds"))
            check_prompt(self.special_kwargs, params, given.get("prompt_token_ids"))

    def process_inputs(self, *args: Any, **kwargs: Any) -> EngineCoreRequest:
        """As upstream; refuses an answer that was cut off where its children are gone."""
        request = super().process_inputs(*args, **kwargs)
        check_prompt(self.special_kwargs, request.sampling_params, request.prompt_token_ids)
        return request

    @staticmethod
    def assign_request_id(request: EngineCoreRequest) -> None:
        """As upstream; refuses ids that children could have or that hooks use, and prompts of more than whole texts."""
        if request.sampling_params is not None:
            check_id(request.request_id)
        check_whole(request.resumable)
        check_embeds(request.sampling_params, request.prompt_embeds)
        InputProcessor.assign_request_id(request)
        check_id_of_engine(request.request_id)

    def _validate_params(self, params: Any, *args: Any) -> Any:
        if isinstance(params, SamplingParams):
            check_extra_args(self.special_kwargs, params)
        return super()._validate_params(params, *args)


def engine_of(tokenizer: Any) -> Engine:
    """What is known of an engine whose front end has this tokenizer."""

    def detokenizer(prompt_token_ids: list[int], params: Any) -> Detokenizer:
        request = bare_request("answer", prompt_token_ids, params)
        return cast(Detokenizer, IncrementalDetokenizer.from_new_request(tokenizer, request))

    return Engine(Texts(tokenizer, Logprob), detokenizer)
