# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of a tree: a child's own, and a parent's after a join."""

import copy
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from vllm.hooks.branch import Branch
from vllm.hooks.checks import sampling_fields
from vllm.sampling_params import SamplingParams
from vllm.sequence import Sequence

Complete = Callable[[SamplingParams, Sequence], SamplingParams]
"""What the engine adds to the parameters of a new request: logits processors, the model's EOS tokens."""

_BECOME_PROCESSORS = ("guided_decoding", "logit_bias", "allowed_token_ids", "bad_words")
"""Fields that the engine turns into logits processors when a request comes in."""


def child_params(
    parent: Branch, overrides: SamplingParams | Mapping[str, Any] | None, index: int, complete: Complete
) -> SamplingParams:
    """The parameters of a child of ``parent``: its own copy, with a seed and processors of its own.

    Args:
        overrides: A `SamplingParams` replaces the parent's; a mapping replaces the fields that it names.
            If one of them becomes a logits processor, none of the parent's processors is inherited.
        index: The child's place among its parent's children.

    Raises:
        ValueError: the overrides don't go together with the parent's parameters.
    """
    if overrides is None:
        params = parent.sampling_params.clone()
    else:
        given = overrides if isinstance(overrides, SamplingParams) else _override(parent.sampling_params, overrides)
        params = complete(given.clone(), parent.seq)
    # The parent's context is no prompt of the user's.
    params.prompt_logprobs = None
    if params.seed is not None:
        params.seed = derive_seed(params.seed, parent.sampling_params.seed, index)
    return params


def params_after_join(branch: Branch) -> SamplingParams:
    """The parameters with which a parent goes on: the same processors, and their state.

    A prefill restarts the random stream of a seeded sequence, so it gets another seed. Prompt logprobs
    were taken at the first prefill; one that goes on behind the prompt has none.
    """
    params = copy.copy(branch.seq_group.sampling_params)
    params.prompt_logprobs = None
    if params.seed is not None:
        params.seed = derive_seed(branch.sampling_params.seed, "join", len(branch.joins))
    return params


def derive_seed(*parts: object) -> int:
    """A seed that depends on all ``parts``, the same in every process; from 0 to 2**63 - 1."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _override(params: SamplingParams, overrides: Mapping[str, Any]) -> SamplingParams:
    names = [name for name in params.__struct_fields__ if not name.startswith("_")]
    # The parent's processors are made already, and a child is one sequence.
    made = dict.fromkeys((*_BECOME_PROCESSORS, "best_of")) | {"n": 1}
    fields = {name: getattr(params, name) for name in names} | made | sampling_fields(overrides)
    if not any(name in overrides for name in (*_BECOME_PROCESSORS, "logits_processors")):
        fields["logits_processors"] = params.clone().logits_processors
    elif "logits_processors" not in overrides:
        fields["logits_processors"] = None
    # Follows from the other fields.
    del fields["output_text_buffer_length"]
    return SamplingParams(**fields)
