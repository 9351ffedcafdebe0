# SPDX-License-Identifier: Apache-2.0
"""The fuzzer's plans (`mytests.fuzz.plan`) as a logits processor of V1."""

from typing import Any

import torch

from mytests.fuzz.plan import Plan, masked
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

PLAN = "plan"
"""The extra argument of a request that carries its plan; its children inherit it."""


class PlanProcessor(AdapterLogitsProcessor):
    """Forces what the plan of each request has. It comes after all that rules tokens out, so it sees what is left."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        plan: Plan | None = (params.extra_args or {}).get(PLAN)
        if plan is None:
            return None

        def process(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
            return by_plan(plan, (*prompt, *output), logits)

        return process


def by_plan(plan: Plan, context: tuple[int, ...], logits: torch.Tensor) -> torch.Tensor:
    """The ``logits`` of the next token of a ``context``, as the plan has them."""
    # The oracle asks for the same, see `mytests.harness.dialect.Dialect.seen_by_plan`.
    forced = plan.forced(context, 0)
    if forced is not None and logits[forced] > -torch.inf:
        only = torch.full_like(logits, -torch.inf)
        only[forced] = 0.0
        return only
    others = masked(logits)
    return others if (others > -torch.inf).any() else logits
