# SPDX-License-Identifier: Apache-2.0
"""The fuzzer's plans (`mytests.fuzz.plan`) as a logits processor of V1."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch

from mytests.fuzz.plan import Plan, masked
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

PLAN = "plan"
"""The extra argument of a request that carries its plan; its children inherit it."""


class PlanProcessor(LogitsProcessor):
    """Forces what the plan of each request has. It comes after all that rules tokens out, so it sees what is left."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, tuple[Plan, list[int], list[int]]] = {}
        """Of each request its plan, its prompt, and what it has sampled, to which upstream appends."""

        self._drafts: Sequence[Sequence[int]] | None = None

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        def row(params: Any, prompt: Any, output: Any) -> Any:
            plan = (params.extra_args or {}).get(PLAN)
            return None if plan is None else (plan, prompt, output)

        process_dict_updates(self._rows, batch_update, row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, (plan, context) in self._contexts():
            drafts = () if self._drafts is None else self._drafts[index]
            logits[index] = by_plan(plan, (*context, *drafts), logits[index])
        return logits

    def _apply_before_drafts(self, logits: torch.Tensor, num_drafts: Sequence[int]) -> None:
        drafts, starts = self._drafts or (), list(accumulate(num_drafts, initial=0))
        for index, (plan, context) in self._contexts() if drafts else ():
            for number, row in enumerate(range(starts[index], starts[index + 1])):
                logits[row] = by_plan(plan, (*context, *drafts[index][:number]), logits[row])

    def _contexts(self) -> Iterator[tuple[int, tuple[Plan, tuple[int, ...]]]]:
        for index, (plan, prompt, output) in self._rows.items():
            yield index, (plan, (*prompt, *output))

    def attach(self, runner: Any) -> None:
        """Be a processor of a model runner that speculates, whose drafts foresee what is forced."""
        _foresee(runner)
        runner.input_batch.logitsprocs.non_argmax_invariant.append(self)
        sampler = runner.rejection_sampler
        sample, process = sampler.forward, sampler.apply_logits_processors

        def forward(metadata: Any, probabilities: Any, logits: Any, sampling: Any) -> Any:
            self._drafts = sampling.spec_token_ids
            try:
                return sample(metadata, probabilities, logits, sampling)
            finally:
                self._drafts = None

        def apply_logits_processors(logits: torch.Tensor, sampling: Any, metadata: Any) -> torch.Tensor:
            processed: torch.Tensor = process(logits, sampling, metadata)
            self._apply_before_drafts(processed, metadata.num_draft_tokens)
            return processed

        sampler.forward, sampler.apply_logits_processors = forward, apply_logits_processors


def _foresee(runner: Any) -> None:
    propose, batch = runner.propose_draft_token_ids, runner.input_batch
    most = runner.speculative_config.num_speculative_tokens

    def propose_draft_token_ids(scheduled: Any, sampled: Any, *others: Any) -> Any:
        drafts = propose(scheduled, sampled, *others)
        for row, name in enumerate(batch.req_ids):
            extra_args = runner.requests[name].sampling_params.extra_args
            if extra_args is None:
                # Glue, which has no plan.
                continue
            plan = extra_args[PLAN]
            context = batch.token_ids_cpu[row, : batch.num_tokens_no_spec[row]].tolist()
            # Of a prompt in parts nothing is sampled. What a draft model continues is not in the batch yet.
            if isinstance(sampled, list):
                drafts[row] = foreseen(plan, tuple(context), drafts[row], most) if sampled[row] else []
                continue
            new = [token for token in sampled[row].tolist() if token >= 0]
            found = foreseen(plan, (*context, *new), drafts[row].tolist(), most)
            drafts[row] = torch.tensor(found, dtype=drafts.dtype)
        return drafts

    runner.propose_draft_token_ids = propose_draft_token_ids


def foreseen(plan: Plan, context: tuple[int, ...], drafts: list[int], most: int) -> list[int]:
    """``drafts``, in which what the plan forces is right."""
    found: list[int] = []
    while len(found) < most:
        forced = plan.forced((*context, *found), 0)
        if forced is None and len(found) >= len(drafts):
            break
        found.append(drafts[len(found)] if forced is None else forced)
    return found


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
