# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.entrypoints.openai.serving_engine``, whose errors repeat no long inputs."""

from typing import Any

from sequence_hooks.serving.outlines.requests import ALIAS, has_outlines, misspelled_field, refused
from sequence_hooks.text.messages import abbreviated_error
from vllm._overlay import fall_back_to
from vllm._upstream.entrypoints.openai import serving_engine as upstream
from vllm.engine.hooked import special_kwargs_behind
from vllm.entrypoints.openai.bodies import brief_text
from vllm.entrypoints.openai.protocol import ChatCompletionRequest, ErrorResponse


class OpenAIServing(upstream.OpenAIServing):
    """Upstream's `OpenAIServing`, from which all its handlers derive."""

    def create_error_response(self, message: str, *args: Any, **kwargs: Any) -> ErrorResponse:
        """A shortened message: upstream's contain model names, grammars and messages of other libraries."""
        return super().create_error_response(brief_text(message), *args, **kwargs)

    async def _check_model(self, request: Any) -> ErrorResponse | None:
        """Upstream's `_check_model`, and of our fields. What asks for an outline is refused where nobody reads that."""
        special_kwargs = await special_kwargs_behind(self.engine_client)
        if special_kwargs is None:
            return await super()._check_model(request)
        answers_outlines, reason = has_outlines(special_kwargs), misspelled_field(request, special_kwargs)
        if answers_outlines and not isinstance(request, ChatCompletionRequest):
            reason = refused(request) or reason
        if reason is not None:
            return self.create_error_response(reason)
        found = await super()._check_model(request)
        if answers_outlines and found is not None and found.type == "NotFoundError":
            found.message += f" With {ALIAS!r} after it, a name asks for an outline."
        return found

    def _load_prompt_embeds(self, *args: Any, **kwargs: Any) -> Any:
        """Upstream's `_load_prompt_embeds`; data that torch cannot load, or another tensor, is the client's error."""
        try:
            return super()._load_prompt_embeds(*args, **kwargs)
        except Exception as error:
            raise ValueError(f"prompt_embeds cannot be read as embeddings ({abbreviated_error(error)})") from None


__getattr__ = fall_back_to("vllm._upstream.entrypoints.openai.serving_engine")
