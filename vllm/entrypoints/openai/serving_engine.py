# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.entrypoints.openai.serving_engine``, whose errors repeat no long inputs."""

from typing import Any

from sequence_hooks.config.messages import abbreviated_error
from vllm._overlay import fall_back_to
from vllm._upstream.entrypoints.openai import serving_engine as upstream
from vllm.entrypoints.openai.bodies import brief_text
from vllm.entrypoints.openai.protocol import ErrorResponse


class OpenAIServing(upstream.OpenAIServing):
    """Upstream's `OpenAIServing`, from which all its handlers derive."""

    def create_error_response(self, message: str, *args: Any, **kwargs: Any) -> ErrorResponse:
        """A shortened message: upstream's contain model names, grammars and messages of other libraries."""
        return super().create_error_response(brief_text(message), *args, **kwargs)

    def _load_prompt_embeds(self, *args: Any, **kwargs: Any) -> Any:
        """Upstream's `_load_prompt_embeds`; data that torch cannot load, or another tensor, is the client's error."""
        try:
            return super()._load_prompt_embeds(*args, **kwargs)
        except Exception as error:
            raise ValueError(f"prompt_embeds cannot be read as embeddings ({abbreviated_error(error)})") from None


__getattr__ = fall_back_to("vllm._upstream.entrypoints.openai.serving_engine")
