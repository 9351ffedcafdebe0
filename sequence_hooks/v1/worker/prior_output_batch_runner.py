# SPDX-License-Identifier: Apache-2.0
"""Upstream's first model runner: joined sequences are penalised for what they sampled before the join."""

from collections import Counter
from collections.abc import Collection
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

    def apply(self, logits: torch.Tensor) -> None:
        """Change the logits of its next token, of shape [vocabulary], in place."""
        if self._place:
            self._penalise(logits)
        for missing, last in self._words:
            if self._outputs == missing:
                logits[last] = float("-inf")

    def _penalise(self, logits: torch.Tensor) -> None:
        """Upstream scales for repetition afterwards, but for what is neither in the context nor was sampled since the
        join, and then subtracts for what was sampled since.
        """
        for token_id in self._outputs[self._num_seen :]:
            place = self._place.get(token_id)
            if place is not None:
                self._is_only_earlier[place] = 0
                self._is_replaced[place] = False
        self._num_seen = len(self._outputs)
        params = self._params
        scaled = _scale(logits[self._ids], params.repetition_penalty)
        scaled -= params.frequency_penalty * self._counts + params.presence_penalty * self._is_only_earlier
        logits[self._ids] = torch.where(self._is_replaced, scaled, _scale(scaled, 1 / params.repetition_penalty))


class PriorOutputTokens(LogitsProcessor):
    """The last of the processors before upstream's penalties. A batch without joined sequences costs nothing."""

    def __init__(self, device: torch.device) -> None:
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
            row.apply(logits[index])
        return logits

    def _row(self, params: SamplingParams, prompt_token_ids: Any, output_token_ids: list[int]) -> Row | None:
        return Row(params, prompt_token_ids, output_token_ids, self._device) if prior_output_of(params) else None


def _scale(logits: torch.Tensor, penalty: float) -> torch.Tensor:
    """Upstream's repetition penalty of tokens that all occur; the inverse penalty undoes it."""
    return torch.where(logits > 0, logits / penalty, logits * penalty)
