# SPDX-License-Identifier: Apache-2.0
"""What differs between releases, as the installed vLLM has it."""

from importlib import import_module
from typing import TYPE_CHECKING

import vllm
from sequence_hooks.v1.releases import module_of

if TYPE_CHECKING:
    # The release that types are checked with.
    from sequence_hooks.v1.releases.vllm_0_32 import (
        ReleaseRequestState,
        ReleaseScheduler,
        add_logits_processor,
        completion_usage_type,
        unsupported,
    )
else:
    _module = import_module(f"sequence_hooks.v1.releases.{module_of(vllm.__version__)}")
    ReleaseRequestState = _module.ReleaseRequestState
    ReleaseScheduler = _module.ReleaseScheduler
    add_logits_processor = _module.add_logits_processor
    completion_usage_type = _module.completion_usage_type
    unsupported = _module.unsupported

__all__ = [
    "ReleaseRequestState",
    "ReleaseScheduler",
    "add_logits_processor",
    "completion_usage_type",
    "unsupported",
]
