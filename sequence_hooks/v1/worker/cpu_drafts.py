# SPDX-License-Identifier: Apache-2.0
"""Upstream's sampler of drafts on a CPU: each row is sampled at its request's temperature, and with its cut-offs.

Upstream's kernel for CPUs writes what each row is to have into a copy of its output. With a temperature rows of drafts
would be sampled by what their memory held before; and a step without drafts of a request with `top_k` would end the
engine. Both are so with hooks or without.
"""

from typing import Any

import torch

from vllm.v1.sample import rejection_sampler

_constrain = rejection_sampler.apply_sampling_constraints


def attach() -> None:
    """Replace the functions around the kernel, in this process."""
    rejection_sampler.expand_batch_to_tokens = expanded
    rejection_sampler.apply_sampling_constraints = constrained


def constrained(logits: torch.Tensor, cu_num_draft_tokens: torch.Tensor, sampling_metadata: Any) -> torch.Tensor:
    """As upstream, also where there are no ``logits``, of shape [drafts, vocabulary]. The names are upstream's."""
    return _constrain(logits, cu_num_draft_tokens, sampling_metadata) if len(logits) else logits


def expanded(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """The value of each draft's request, of shape [drafts]. The names are upstream's.

    Args:
        x: The values, [requests].
        cu_num_tokens: How many drafts there are up to the end of each request's, [requests].
        num_tokens: The number of drafts.
        replace_from, replace_to: A value to be replaced by another one.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return torch.where(x == replace_from, replace_to, x).repeat_interleave(counts, output_size=num_tokens)
