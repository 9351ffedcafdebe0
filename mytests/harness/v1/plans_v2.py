# SPDX-License-Identifier: Apache-2.0
"""The fuzzer's plans (`mytests.fuzz.plan`) as a logits processor of upstream's second model runner."""

from typing import Any

import torch

from mytests.fuzz.plan import Plan
from mytests.harness.v1.plans import PLAN, by_plan
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor


class SlotPlanProcessor(LogitsProcessor):
    """Forces what the plan of each request has, which it keeps by the request's slot."""

    def __init__(self, vllm_config: Any, requests: Any) -> None:
        self._requests = requests
        self._plans: dict[int, Plan] = {}

    def add_request(self, slot: int, params: SamplingParams) -> bool:
        self._plans.pop(slot, None)
        plan: Plan | None = (params.extra_args or {}).get(PLAN)
        if plan is not None:
            self._plans[slot] = plan
        return plan is not None

    def apply(self, logits: torch.Tensor, context: Any) -> torch.Tensor:
        for row, slot in enumerate(context.idx_mapping_np.tolist()):
            if slot in self._plans:
                logits[row] = by_plan(self._plans[slot], self._context_of(slot), logits[row])
        return logits

    def _context_of(self, slot: int) -> tuple[int, ...]:
        length = int(self._requests.total_len.gpu[slot])
        token_ids: list[int] = self._requests.all_token_ids.gpu[slot, :length].tolist()
        return tuple(token_ids)
