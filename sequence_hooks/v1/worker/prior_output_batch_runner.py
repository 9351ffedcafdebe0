# SPDX-License-Identifier: Apache-2.0
"""Upstream's first model runner: joined sequences are penalised for what they sampled before the join."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch

from sequence_hooks.v1.prior_output import bad_words_in_progress, has_penalties, prior_output_of
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates


class Row:
    """One joined sequence in the batch.

    Args:
        prompt_token_ids: Its context at the join, in which what was replaced is missing.
        output_token_ids: What it has sampled since its join; upstream appends to this list.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Collection[int],
        output_token_ids: list[int],
        device: torch.device,
    ) -> None:
        earlier = prior_output_of(params)
        self._outputs = output_token_ids
        self._words = list(bad_words_in_progress(params, earlier))
        self._params = params
        counts = Counter(earlier if has_penalties(params) else ())
        self._place = {token_id: index for index, token_id in enumerate(counts)}
        self._ids = torch.tensor(list(counts), dtype=torch.int64, device=device)
        self._counts = torch.tensor(list(counts.values()), device=device)
        self._is_only_earlier = torch.ones_like(self._counts)
        in_prompt = set(prompt_token_ids) if counts else set()
        self._is_replaced = torch.tensor([each not in in_prompt for each in counts], dtype=torch.bool, device=device)
        self._num_seen = 0

    def apply(self, logits: torch.Tensor, drafts: Sequence[int] = ()) -> None:
        """Change the logits of its next token, or of the one after ``drafts``, of shape [vocabulary], in place."""
        if self._place:
            self._penalise(logits, drafts)
        for missing, last in self._words:
            if [*self._outputs, *drafts] == missing:
                logits[last] = float("-inf")

    def _penalise(self, logits: torch.Tensor, drafts: Sequence[int]) -> None:
        """Upstream scales for repetition afterwards, but for what is neither in the context nor was sampled since the
        join, and then subtracts for what was sampled since.
        """
        for place in self._places(self._outputs[self._num_seen :]):
            self._is_only_earlier[place] = 0
            self._is_replaced[place] = False
        self._num_seen = len(self._outputs)
        is_only_earlier, is_replaced = self._is_only_earlier, self._is_replaced
        if drafts:
            is_only_earlier, is_replaced = is_only_earlier.clone(), is_replaced.clone()
            for place in self._places(drafts):
                is_only_earlier[place] = 0
                is_replaced[place] = False
        params = self._params
        scaled = _scale(logits[self._ids], params.repetition_penalty)
        scaled -= params.frequency_penalty * self._counts + params.presence_penalty * is_only_earlier
        logits[self._ids] = torch.where(is_replaced, scaled, _scale(scaled, 1 / params.repetition_penalty))

    def _places(self, token_ids: Iterable[int]) -> Iterator[int]:
        return (self._place[each] for each in token_ids if each in self._place)


class PriorOutputTokens(LogitsProcessor):
    """The last of the processors before upstream's penalties. A batch without joined sequences costs nothing."""

    def __init__(self, device: torch.device) -> None:
        self.drafts: Sequence[Sequence[int]] | None = None
        """The drafts of each request while upstream's sampler of drafts runs; None otherwise. `apply` then gets the row
        after a request's last draft, and `apply_to_drafts` all the others."""

        self._device = device
        self._rows: dict[int, Row] = {}

    def is_argmax_invariant(self) -> bool:
        """False: penalties change what is greedily sampled."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow upstream's batch."""
        process_dict_updates(self._rows, batch_update, self._row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Change ``logits``, of shape [rows, vocabulary], in place."""
        for index, row in self._rows.items():
            row.apply(logits[index], self.drafts[index] if self.drafts is not None else ())
        return logits

    def apply_to_drafts(self, logits: torch.Tensor, num_drafts: Sequence[int]) -> None:
        """Change ``logits``, of shape [drafts of all requests, vocabulary], in place; each row is before its draft."""
        if self.drafts is None:
            return
        starts = list(accumulate(num_drafts, initial=0))
        for index, row in self._rows.items():
            for number in range(num_drafts[index]):
                row.apply(logits[starts[index] + number], self.drafts[index][:number])

    def _row(self, params: SamplingParams, prompt_token_ids: Any, output_token_ids: list[int]) -> Row | None:
        return Row(params, prompt_token_ids, output_token_ids, self._device) if prior_output_of(params) else None


def attach_to_rejection_sampler(sampler: Any, processor: PriorOutputTokens) -> None:
    """Let upstream's sampler of drafts apply ``processor`` to all of its rows. By itself it does so only for the row
    after a request's last draft; the others have to be changed before it applies their penalties.
    """
    upstream_forward, upstream_processors = sampler.forward, sampler.apply_logits_processors

    def forward(metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
        processor.drafts = sampling_metadata.spec_token_ids
        try:
            return upstream_forward(metadata, draft_probs, logits, sampling_metadata)
        finally:
            processor.drafts = None

    def apply_logits_processors(logits: torch.Tensor, sampling_metadata: Any, metadata: Any) -> torch.Tensor:
        processor.apply_to_drafts(logits, metadata.num_draft_tokens)
        processed: torch.Tensor = upstream_processors(logits, sampling_metadata, metadata)
        return processed

    sampler.forward, sampler.apply_logits_processors = forward, apply_logits_processors


def _scale(logits: torch.Tensor, penalty: float) -> torch.Tensor:
    """Upstream's repetition penalty of tokens that all occur; the inverse penalty undoes it."""
    return torch.where(logits > 0, logits / penalty, logits * penalty)
