# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.31: it still has cascade attention."""

from collections.abc import Iterator

from sequence_hooks.v1.releases import vllm_0_32
from sequence_hooks.v1.releases.vllm_0_32 import ReleaseRequestState as ReleaseRequestState
from sequence_hooks.v1.releases.vllm_0_32 import ReleaseScheduler as ReleaseScheduler
from sequence_hooks.v1.releases.vllm_0_32 import Unsupported
from sequence_hooks.v1.releases.vllm_0_32 import add_logits_processor as add_logits_processor
from sequence_hooks.v1.releases.vllm_0_32 import completion_usage_type as completion_usage_type
from vllm.config import VllmConfig


def unsupported(config: VllmConfig) -> Iterator[Unsupported]:
    """See `vllm_0_32.unsupported`."""
    yield from vllm_0_32.unsupported(config)
    yield cascade_attention(config)


def cascade_attention(config: VllmConfig) -> Unsupported:
    """It takes a block for a prefix of all requests if it has as many owners as there are requests; forks own some."""
    is_set = not config.model_config.disable_cascade_attn
    return is_set, "disable_cascade_attn", False, "leave it at True: a fork's blocks would be taken for a common prefix"
