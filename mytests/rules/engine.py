# SPDX-License-Identifier: Apache-2.0
"""The surgical engine of the vLLM that is installed."""

from typing import TYPE_CHECKING

from mytests.characters import CHILD, EOS, PROMISE, SYNC, CharTokenizer, ids
from mytests.which import IS_V1

if TYPE_CHECKING:
    # Both have the same interface; types are checked in the fork's environment.
    from mytests.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, finished, num_sampled, plan
    from vllm.config import SpecialKwargs
elif IS_V1:
    from mytests.v1.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, finished, num_sampled, plan
    from sequence_hooks import SpecialKwargs
else:
    from mytests.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, finished, num_sampled, plan
    from vllm.config import SpecialKwargs

Prompts = dict[str, list[int]]
"""The prompts of sequences, by request id."""

__all__ = [
    "CHILD",
    "EOS",
    "HOOKS",
    "PROMISE",
    "SYNC",
    "SYNC_HOOKS",
    "CharTokenizer",
    "Prompts",
    "SpecialKwargs",
    "SurgicalEngine",
    "finished",
    "ids",
    "num_sampled",
    "plan",
]
