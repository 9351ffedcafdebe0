# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``LLM``, which takes no requests that only somebody else could let go on."""

from typing import Any

from vllm._overlay import fall_back_to
from vllm._upstream.entrypoints import llm as upstream


class LLM(upstream.LLM):
    """Upstream's `LLM`; ``special_kwargs`` switches sequence hooks on."""

    def _validate_and_add_requests(self, *args: Any, **kwargs: Any) -> None:
        special_kwargs = self.llm_engine.vllm_config.special_kwargs
        if special_kwargs is not None and special_kwargs.sync_resume == "manual":
            raise ValueError(
                'special_kwargs: sync_resume is "manual", and LLM returns only when all requests have finished, '
                "so nobody could resume them; step an LLMEngine, or use AsyncLLMEngine"
            )
        super()._validate_and_add_requests(*args, **kwargs)


__getattr__ = fall_back_to("vllm._upstream.entrypoints.llm")
