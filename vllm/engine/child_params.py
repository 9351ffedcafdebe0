# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of a tree: those of a child, and those of a parent after a join."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from sequence_hooks.tree.child_params import derive_seed, replaced
from vllm.core.hooked_sequence import V0Branch
from vllm.engine.child_overrides import check_one_child, sampling_fields
from vllm.sampling_params import _MAX_TEMP, SamplingParams
from vllm.sequence import Sequence

Complete = Callable[[SamplingParams, Sequence], SamplingParams]
"""Returns parameters with what the engine adds to a new request's: logits processors, the model's EOS tokens."""

_BECOME_PROCESSORS = ("guided_decoding", "logit_bias", "allowed_token_ids", "bad_words")
"""Fields that the engine turns into logits processors when a request comes in."""


def child_params(
    parent: V0Branch, overrides: SamplingParams | Mapping[str, Any] | None, index: int, complete: Complete
) -> SamplingParams:
    """The parameters of a child of ``parent``: its own copy, with a seed and processors of its own.

    Args:
        overrides: See `inherit`.
        index: The child's position among its parent's children.
    """
    params = inherit(parent.sequence.sampling_params, overrides)
    if overrides is not None:
        check_one_child(params)
        params = complete(params, parent.sequence.seq)
    # The child's prompt is its parent's context, which no user has sent as a prompt.
    params.prompt_logprobs = None
    if params.seed is not None:
        params.seed = derive_seed(params.seed, parent.sequence.sampling_params.seed, index)
    return params


def inherit(params: SamplingParams, overrides: SamplingParams | Mapping[str, Any] | None) -> SamplingParams:
    """A copy of ``params`` with ``overrides`` applied; children share no state that changes while they are sampled.

    Args:
        params: Those of a request that was admitted.
        overrides: A `SamplingParams` replaces everything; a mapping replaces the fields that it names, and inherited
            ones that contradict them are adjusted (see ``docs/internals/semantics.md``). If a field that it names
            becomes a logits processor, no processor is inherited.
    """
    if overrides is None:
        return params.clone()
    if isinstance(overrides, SamplingParams):
        return overrides.clone()
    given = sampling_fields(overrides)
    # The parent's own values have already become logits processors.
    cleared = dict.fromkeys(_BECOME_PROCESSORS)
    if not given.keys().isdisjoint(_BECOME_PROCESSORS):
        cleared["logits_processors"] = None
    return _replaced(params, cleared | given).clone()


def params_after_join(branch: V0Branch) -> SamplingParams:
    """The parameters with which a parent continues: the same processors with their state.

    A prefill restarts the random stream of a seeded sequence, so the sequence gets another seed. Prompt
    logprobs were taken at the first prefill; a later one, after the prompt, has none.
    """
    params = copy.copy(branch.sequence.group.sampling_params)
    params.prompt_logprobs = None
    if params.seed is not None:
        params.seed = derive_seed(branch.sequence.sampling_params.seed, "join", len(branch.joins))
    return params


def overlaid(params: SamplingParams, overrides: Mapping[str, Any]) -> SamplingParams:
    """``params``, which are no request's, with ``overrides`` applied."""
    return _replaced(params, sampling_fields(overrides))


def _replaced(params: SamplingParams, given: Mapping[str, Any]) -> SamplingParams:
    return SamplingParams(**replaced(params, given, ("output_text_buffer_length", "best_of", "n"), _MAX_TEMP))
