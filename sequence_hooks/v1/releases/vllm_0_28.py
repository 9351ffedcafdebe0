# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.28: as 0.29, with logprobs of no tokens, and an older place for a class."""

from collections.abc import Iterator
from typing import Any

from sequence_hooks.v1.releases.vllm_0_29 import ReleaseScheduler as ReleaseScheduler
from sequence_hooks.v1.releases.vllm_0_29 import add_logits_processor as add_logits_processor
from sequence_hooks.v1.releases.vllm_0_31 import cascade_attention
from sequence_hooks.v1.releases.vllm_0_32 import Unsupported, routed_experts
from vllm.config import VllmConfig
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.output_processor import RequestState


class ReleaseRequestState(RequestState):
    """See `vllm_0_32.ReleaseRequestState`."""

    def _new_completion_output(self, token_ids: list[int], *args: Any) -> Any:
        made = super()._new_completion_output(token_ids, *args)
        if self.output_kind == RequestOutputKind.DELTA and not token_ids and made.logprobs is not None:
            # Upstream takes the last zero entries of a list for all of them.
            made.logprobs = made.logprobs[:0]
        return made


def unsupported(config: VllmConfig) -> Iterator[Unsupported]:
    """See `vllm_0_32.unsupported`."""
    yield routed_experts(config.model_config.enable_return_routed_experts)  # type: ignore[attr-defined]
    yield cascade_attention(config)


def completion_usage_type() -> type:
    """See `vllm_0_32.completion_usage_type`."""
    from vllm.entrypoints.openai.engine.protocol import (  # type: ignore[import-not-found]
        CompletionTokenUsageInfo,
    )

    found: type = CompletionTokenUsageInfo
    return found
