# SPDX-License-Identifier: Apache-2.0
"""Upstream's list of models, with the names that ask for an outline."""

from sequence_hooks.serving.outlines.requests import has_outlines, with_aliases
from vllm._overlay import fall_back_to
from vllm._upstream.entrypoints.openai import serving_models as upstream
from vllm.engine.hooked import special_kwargs_behind
from vllm.entrypoints.openai.protocol import ModelList


class OpenAIServingModels(upstream.OpenAIServingModels):
    """Upstream's `OpenAIServingModels`; see `sequence_hooks.serving.outlines.requests`."""

    async def show_available_models(self) -> ModelList:
        found = await super().show_available_models()
        if has_outlines(await special_kwargs_behind(self.engine_client)):
            found.data = with_aliases(found.data)
        return found


__getattr__ = fall_back_to("vllm._upstream.entrypoints.openai.serving_models")
