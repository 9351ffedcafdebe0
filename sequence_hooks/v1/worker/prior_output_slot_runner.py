# SPDX-License-Identifier: Apache-2.0
"""Upstream's second model runner, which keeps the counts of sampled tokens on the device, by slot."""

from collections import Counter
from typing import Any

import torch

from sequence_hooks.v1.prior_output import bad_words_in_progress, has_penalties, prior_output_of
from vllm.sampling_params import SamplingParams


class PriorOutputCounts:
    """One of that runner's logits processors; it must come after upstream's own.

    Args:
        requests: Upstream's state of requests: ``all_token_ids`` [slots, length], ``prompt_len`` and ``total_len``
            [slots].
        output_counts: Upstream's counts of sampled tokens, [slots, vocabulary].
    """

    def __init__(self, requests: Any, output_counts: torch.Tensor) -> None:
        self._requests = requests
        self._output_counts = output_counts
        self._uncounted: dict[int, list[int]] = {}
        self._words: dict[int, list[tuple[torch.Tensor, int]]] = {}

    def add_request(self, slot: int, params: SamplingParams) -> bool:
        """Take note of a request that gets ``slot``; whether it has anything to do with it."""
        earlier = prior_output_of(params)
        self._uncounted.pop(slot, None)
        self._words.pop(slot, None)
        if earlier and has_penalties(params):
            self._uncounted[slot] = earlier
        device = self._output_counts.device
        words = [
            (torch.tensor(missing, device=device), last) for missing, last in bad_words_in_progress(params, earlier)
        ]
        if words:
            self._words[slot] = words
        return bool(earlier)

    def apply_staged_writes(self) -> None:
        """Add to the counts, which upstream has just made of what was sampled since the join."""
        for slot, earlier in self._uncounted.items():
            counts = Counter(earlier)
            ids = torch.tensor(list(counts), device=self._output_counts.device)
            self._output_counts[slot, ids] += torch.tensor(list(counts.values())).to(self._output_counts)
        self._uncounted.clear()

    def apply(self, logits: torch.Tensor, context: Any) -> torch.Tensor:
        """Forbid the ends of bad words in ``logits``, of shape [rows, vocabulary], in place."""
        for slot in context.idx_mapping_np.tolist() if self._words else ():
            for missing, last in self._words.get(slot, ()):
                is_next = (context.expanded_idx_mapping == slot) & self._is_sampled(slot, missing, context)
                logits[:, last] = torch.where(is_next, float("-inf"), logits[:, last])
        return logits

    def _is_sampled(self, slot: int, missing: torch.Tensor, context: Any) -> torch.Tensor:
        """For each row of ``slot``, whether exactly ``missing`` follows the join, drafts included; for other rows it
        means nothing. It stays on the device, so that nobody waits for it.
        """
        start, places = self._requests.prompt_len.gpu[slot], torch.arange(len(missing), device=missing.device)
        num_sampled = self._requests.total_len.gpu[slot] - start
        token_ids, drafts = self._requests.all_token_ids.gpu[slot], context.input_ids
        sampled = token_ids[(start + places).clamp(max=len(token_ids) - 1)]
        # A request's first row has its last token as input, and each further one a draft.
        rows = torch.arange(len(drafts), device=drafts.device)[:, None]
        places_of_drafts = rows - context.expanded_local_pos[:, None] + places - num_sampled + 1
        drafted = drafts[places_of_drafts.clamp(0, len(drafts) - 1)]
        is_same = torch.where(places < num_sampled, sampled, drafted) == missing
        is_next: torch.Tensor = is_same.all(dim=1) & (num_sampled + context.expanded_local_pos == len(missing))
        return is_next
