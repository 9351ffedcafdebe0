# SPDX-License-Identifier: Apache-2.0
"""Scripts as a logits processor of a current vLLM."""

import json
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.forkjoin.plans import Script, allow
from benchmarks.forkjoin.script_texts import SCRIPT
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class Scripts(AdapterLogitsProcessor):
    """Lets each request sample what its script says."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        given = (params.extra_args or {}).get(SCRIPT)
        if given is None:
            return None
        script = Script(**json.loads(given)) if isinstance(given, str) else given

        left: dict[int, Sequence[int]] = {}

        def process(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
            # After a join all that a request has is its prompt, which has grown.
            if len(prompt) not in left:
                left[len(prompt)] = script.left(prompt)
            return allow(left[len(prompt)][len(output)], logits)

        return process
