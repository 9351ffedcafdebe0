# SPDX-License-Identifier: Apache-2.0
"""The fuzzer's plans (`mytests.fuzz.plan`) as a logits processor of upstream's second model runner."""

from typing import Any

import torch

from mytests.fuzz.plan import Plan
from mytests.harness.v1.plans import PLAN, by_plan, foreseen
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
        rows = zip(context.expanded_idx_mapping.tolist(), context.input_ids.tolist(), strict=True)
        last, past = -1, tuple[int, ...]()
        for row, (slot, token) in enumerate(rows):
            if slot not in self._plans:
                continue
            # The first row of a request follows what it has; each other one, the draft that is its input.
            past = (*past, token) if slot == last else self._context_of(slot)
            last = slot
            logits[row] = by_plan(self._plans[slot], past, logits[row])
        return logits

    def foresee(self, slots: list[int], drafts: torch.Tensor) -> torch.Tensor:
        """The ``drafts`` of each slot, [slots, drafts], in which what its plan forces is right."""
        for slot, row in zip(slots, drafts, strict=True):
            if slot in self._plans:
                row[:] = torch.tensor(foreseen(self._plans[slot], self._context_of(slot), row.tolist(), len(row)))
        return drafts

    def _context_of(self, slot: int) -> tuple[int, ...]:
        length = int(self._requests.total_len.gpu[slot])
        token_ids: list[int] = self._requests.all_token_ids.gpu[slot, :length].tolist()
        return tuple(token_ids)


def foresee_plans(worker: Any) -> None:
    """Let what a worker drafts, if it does, foresee what the plans of its requests force."""
    runner = worker.model_runner
    if runner.speculator is None:
        return
    (processor,) = (each for each in runner.sampler.logits_processors if isinstance(each, SlotPlanProcessor))
    propose = runner.speculator.propose

    def proposed(batch: Any, *others: Any, **more: Any) -> torch.Tensor:
        return processor.foresee(batch.idx_mapping.tolist(), propose(batch, *others, **more))

    runner.speculator.propose = proposed
