# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.entrypoints.openai.protocol``, with ``stream_children`` in requests."""

from typing import Any

from pydantic import Field, ModelWrapValidatorHandler, model_validator
from typing_extensions import Self

from sequence_hooks.serving.usage import COUNT_TREE
from sequence_hooks.text.messages import abbreviated, abbreviated_error
from vllm._overlay import fall_back_to
from vllm._upstream.entrypoints.openai import protocol as upstream
from vllm.engine.request_checks import MAX_SAMPLES
from vllm.sampling_params import SamplingParams


class HookRequest(upstream.OpenAIBaseModel):
    """A request that may ask for its children's samples, and whose client is told what is wrong even if upstream's
    checks raise other errors. ``stream_children`` changes nothing for a request that meets no hook."""

    stream_children: bool = Field(
        default=False,
        description="With stream: send what the request's children sample, too, each in chunks without choices.",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _refuse(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Turn other errors into a `ValueError`: upstream's checks look into fields before their types are checked."""
        try:
            request = validate(data)
        except (AttributeError, LookupError, TypeError, NotImplementedError) as error:
            told = f"{type(error).__name__}: {abbreviated_error(error)}"
            raise ValueError(f"a field has a wrong type or value ({told})") from None
        for name in ("n", "best_of"):
            if (getattr(request, name, None) or 0) > MAX_SAMPLES:
                raise ValueError(f"{name} is {abbreviated(getattr(request, name))}; use {MAX_SAMPLES} at most")
        return request

    def to_sampling_params(self, *args: Any, **kwargs: Any) -> SamplingParams:
        params: SamplingParams = super().to_sampling_params(*args, **kwargs)
        asked = {
            "stream_children": self.stream_children and self.stream,
            COUNT_TREE: self.stream_options and self.stream_options.continuous_usage_stats,
        }
        names = [name for name, is_asked in asked.items() if is_asked]
        if names:
            params.extra_args = {**(params.extra_args or {}), **dict.fromkeys(names, True)}
        return params


class CompletionRequest(HookRequest, upstream.CompletionRequest):
    """Upstream's `CompletionRequest`, with ``stream_children``."""


class ChatCompletionRequest(HookRequest, upstream.ChatCompletionRequest):
    """Upstream's `ChatCompletionRequest`, with ``stream_children``."""


# Upstream's batches look the classes of their requests up by these names in its own module.
upstream.CompletionRequest = CompletionRequest
upstream.ChatCompletionRequest = ChatCompletionRequest


__getattr__ = fall_back_to("vllm._upstream.entrypoints.openai.protocol")
