# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of a tree: those of a child, and those of a parent after a join."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sequence_hooks.tree.child_params import check_one, derive_seed, replaced
from sequence_hooks.v1.core.sequence import V1Branch, params_of
from sequence_hooks.v1.prior_output import with_earlier
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

Overrides = SamplingParams | Mapping[str, Any] | None
MIN_TEMPERATURE = 1e-2
"""Lower temperatures are raised to this. Upstream would do the same, but warn for each child."""

_DERIVED = ("output_text_buffer_length", "n", "skip_clone")


@dataclass(frozen=True)
class ParamsCompleter:
    """What upstream's front end adds to the parameters of a new request."""

    tokenizer: Any
    """None if the engine has none."""

    eos_token_id: int | None
    generation_config: Mapping[str, Any]
    verify: Callable[[SamplingParams], None]
    """Raises an exception for parameters that would end the engine in a step."""

    def complete(self, params: SamplingParams) -> SamplingParams:
        """Add the model's end-of-sequence tokens, and the token ids of bad words, to ``params``, and verify them."""
        params.update_from_generation_config(dict(self.generation_config), self.eos_token_id)
        if self.tokenizer is not None:
            params.update_from_tokenizer(self.tokenizer)
        self.verify(params)
        return params


def child_params(parent: V1Branch, overrides: Overrides, index: int, completer: ParamsCompleter) -> SamplingParams:
    """The parameters of a child of ``parent``: its own copy, with a seed of its own.

    Args:
        overrides: See `inherit`.
        index: The child's position among its parent's children.

    Raises:
        ValueError: the overrides and the parent's parameters are together invalid.
    """
    own = parent.sequence.sampling_params
    params = inherit(own, overrides)
    if overrides is not None:
        check_one(params)
        completer.complete(params)
    if params.max_tokens is None:
        # Only the model's length ends the child, and upstream needs a number.
        params.max_tokens = own.max_tokens
    # The child's prompt is its parent's context, which no user has sent as a prompt.
    params.prompt_logprobs = None
    params.prompt_logprob_token_ids = None
    params.prompt_logprob_start = None
    params.skip_reading_prefix_cache = False
    if params.seed is not None:
        params.seed = derive_seed(params.seed, own.seed, index)
    return params


def inherit(params: SamplingParams, overrides: Overrides) -> SamplingParams:
    """A copy of ``params`` with ``overrides`` applied.

    Args:
        params: The parameters of a request that was admitted.
        overrides: A `SamplingParams` replaces everything; a mapping replaces the fields that it names, and inherited
            ones that contradict them are adjusted (see ``docs/internals/semantics.md``).
    """
    if overrides is None:
        return copied(params)
    if isinstance(overrides, SamplingParams):
        return copied(overrides)
    given = sampling_fields(overrides)
    return SamplingParams(**replaced(copied(params), given, _DERIVED, MIN_TEMPERATURE))


def copied(params: SamplingParams) -> SamplingParams:
    """A deep copy, except of the values of extra arguments: hooks do not change them, and they may be of any size."""
    extra_args = params.extra_args
    return copy.deepcopy(params, {} if extra_args is None else {id(extra_args): dict(extra_args)})


def check_child(overrides: Overrides, verify: Callable[[SamplingParams], None]) -> None:
    """Raise an exception for ``overrides`` that no child of any request can have."""
    # Upstream's default of max_tokens would forbid a larger min_tokens.
    params = inherit(SamplingParams(max_tokens=None), overrides)
    check_one(params)
    verify(params)


def params_after_join(branch: V1Branch) -> SamplingParams:
    """The parameters with which a parent continues; what it has sampled and got before counts as its prompt.

    A prefill restarts the random stream of a seeded sequence, so the sequence gets another seed. Prompt logprobs were
    taken at the first prefill; a later one has none.
    """
    own = branch.sequence.sampling_params
    params = copy.copy(params_of(branch.sequence.request))
    if params.prompt_logprobs is not None:
        # Only for them did upstream compute all of the prompt.
        params.skip_reading_prefix_cache = False
    params.prompt_logprobs = None
    params.prompt_logprob_token_ids = None
    params.prompt_logprob_start = None
    assert own.max_tokens is not None, "upstream gives every request a number"
    params.max_tokens = own.max_tokens - branch.num_sampled
    params.min_tokens = max(0, own.min_tokens - branch.num_sampled)
    if own.seed is not None:
        params.seed = derive_seed(own.seed, "join", len(branch.joins) - 1)
    with_earlier(params, branch.sampled_token_ids, branch.num_replaced)
    return params


def verify_params(params: SamplingParams, config: VllmConfig, tokenizer: Any) -> None:
    """Raise upstream's error for parameters that it would refuse if a request had them."""
    parts = config.model_config, config.speculative_config, config.structured_outputs_config
    params.verify(*parts, tokenizer)


def sampling_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as `SamplingParams` takes them; JSON gives structured outputs as an object, and ids as strings."""
    given = dict(fields)
    if isinstance(given.get("logit_bias"), Mapping):
        given["logit_bias"] = {_id_of(key): bias for key, bias in given["logit_bias"].items()}
    # Upstream checks types only of requests over HTTP. It must not see a temperature that it would warn of.
    is_low = isinstance(given.get("temperature"), float) and 0 < given["temperature"] < MIN_TEMPERATURE
    quiet = {"temperature": MIN_TEMPERATURE} if is_low else {}
    msgspec.convert({"max_tokens": None, **given, **quiet}, SamplingParams)
    for name, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}; give a finite number")
    if isinstance(given.get("structured_outputs"), Mapping):
        given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
    return given


def _id_of(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key
