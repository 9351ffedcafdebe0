# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.entrypoints.openai.serving_engine``, whose errors repeat no long inputs."""

from typing import Any

from vllm._overlay import fall_back_to
from vllm._upstream.entrypoints.openai import serving_engine as upstream
from vllm.entrypoints.openai.bodies import brief_text
from vllm.entrypoints.openai.protocol import ErrorResponse


class OpenAIServing(upstream.OpenAIServing):
    """Upstream's `OpenAIServing`, of which all its handlers are."""

    def create_error_response(self, message: str, *args: Any, **kwargs: Any) -> ErrorResponse:
        """Upstream's messages have model names, grammars and messages of other libraries in them."""
        return super().create_error_response(brief_text(message), *args, **kwargs)


__getattr__ = fall_back_to("vllm._upstream.entrypoints.openai.serving_engine")
