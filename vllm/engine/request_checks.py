# SPDX-License-Identifier: Apache-2.0
"""Checks sampling parameters before a request is queued: upstream accepts some that kill its engine in a later step.

Each error names the field, its value and the way out.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NoReturn

from sequence_hooks.text.messages import abbreviated, describe_error
from vllm.sampling_params import GuidedDecodingParams, RequestOutputKind, SamplingParams

MAX_SAMPLES = 16_384
"""Of one prompt. Each is a sequence, and all are made before the engine's next step."""

_SEEDS = range(-(2**63), 2**64)
"""The seeds that torch's random generators take."""

SET_BY_THE_ENGINE = ("output_text_buffer_length", "_all_stop_token_ids", "_bad_words_token_ids", "_real_n")


@dataclass(frozen=True)
class ModelFacts:
    """The facts about a model that parameters are checked against."""

    vocab_size: int
    max_logprobs: int
    caches_prefixes: bool = False
    """Whether the engine finds prompts in its prefix cache."""

    @classmethod
    def of(cls, model_config: Any, cache_config: Any) -> "ModelFacts":
        """The facts in an engine's ``ModelConfig`` and ``CacheConfig``."""
        return cls(model_config.get_vocab_size(), model_config.max_logprobs, bool(cache_config.enable_prefix_caching))


@contextmanager
def only_value_errors() -> Iterator[None]:
    """Turn any error into a `ValueError`, which refuses one request, and which the server answers with 400.

    Upstream's engine in the server's process dies of any other error.
    """
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"The request cannot be processed: {describe_error(error)}") from error


def check_types(params: SamplingParams) -> None:
    """Raise a `ValueError` for the first field that has a wrong type, or an invalid number."""
    for names, is_right, way_out in _TYPES:
        for name in names:
            if not is_right(getattr(params, name)):
                raise_for_param(params, name, way_out)


def check_request(params: SamplingParams, model: ModelFacts) -> None:
    """Raise a `ValueError` for parameters that would fail once their request is scheduled."""
    check_types(params)
    if params.n > MAX_SAMPLES:
        raise_for_param(params, "n", f"use at most {MAX_SAMPLES}")
    if params.seed is not None and not (params.seed in _SEEDS and params.seed + params.n - 1 in _SEEDS):
        raise_for_param(params, "seed", "use an integer of 64 bits")
    for name in ("logprobs", "prompt_logprobs"):
        if (getattr(params, name) or 0) > model.max_logprobs:
            raise_for_param(params, name, f"use at most {model.max_logprobs}, or raise the engine's max_logprobs")
    if params.prompt_logprobs is not None and model.caches_prefixes:
        # Upstream's sampler expects a row for each token of the prompt, and fails in a step where some were cached.
        raise_for_param(params, "prompt_logprobs", "leave it out, or start the engine with enable_prefix_caching=False")
    check_ids("allowed_token_ids", params.allowed_token_ids, model)
    check_ids("logit_bias", [int(token_id) for token_id in params.logit_bias or ()], model)
    if params.min_tokens:
        # Only then are they looked up among the logits.
        check_ids("stop_token_ids", params.stop_token_ids, model)


def check_ids(name: str, token_ids: Collection[int] | None, model: ModelFacts) -> None:
    """Raise a `ValueError` if a token id of the field ``name`` lies outside the vocabulary."""
    for token_id in () if token_ids is None else token_ids:
        if not 0 <= token_id < model.vocab_size:
            raise ValueError(
                f"{name} has {abbreviated(int(token_id))}, which is not in the model's vocabulary; "
                f"use ids from 0 to {model.vocab_size - 1}"
            )


def check_prompt(token_ids: Collection[int]) -> None:
    """Raise a `ValueError` if a token id of a prompt is negative; upstream checks the upper bound."""
    if min(token_ids, default=0) < 0:
        raise ValueError(
            f"prompt has {abbreviated(min(token_ids))}, which is not in the model's vocabulary; use ids from 0 up"
        )


def raise_for_param(params: SamplingParams, name: str, way_out: str) -> NoReturn:
    """Raise a `ValueError` for the value of one field."""
    raise ValueError(f"{name} is {abbreviated(getattr(params, name))}; {way_out}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _is_switch(value: Any) -> bool:
    return isinstance(value, (bool, Integral)) and value in (0, 1)


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(text, str) for text in value)


def _are_integers(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str) and all(map(_is_integer, value))


def _are_biases(value: Any) -> bool:
    # Upstream clamps infinite ones to 100, the limit of OpenAI's interface.
    return isinstance(value, Mapping) and all(
        _names_an_integer(token_id) and isinstance(bias, Real) and not math.isnan(bias)
        for token_id, bias in value.items()
    )


def _names_an_integer(value: Any) -> bool:
    # JSON's keys are strings. No vocabulary has ids of 20 digits.
    return _is_integer(value) or (isinstance(value, str) and value.isdecimal() and len(value) < 20)


def _are_functions(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(callable, value))


def _is_a(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _or_none(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


_TYPES: list[tuple[tuple[str, ...], Callable[[Any], bool], str]] = [
    (("n", "top_k", "min_tokens"), _is_integer, "use an integer"),
    (
        ("best_of", "max_tokens", "logprobs", "prompt_logprobs", "truncate_prompt_tokens"),
        _or_none(_is_integer),
        "use an integer, or None",
    ),
    # Torch takes no other integers.
    (("seed",), _or_none(_is_a(int)), "use an integer, or None"),
    (
        ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        _is_number,
        "use a finite number",
    ),
    (
        (
            "ignore_eos",
            "detokenize",
            "skip_special_tokens",
            "spaces_between_special_tokens",
            "include_stop_str_in_output",
        ),
        _is_switch,
        "use True or False",
    ),
    (("stop",), _are_texts, "give a string, or a list of strings"),
    (("bad_words",), _are_texts, "give a list of strings"),
    (("stop_token_ids",), _are_integers, "give a list of token ids"),
    (("allowed_token_ids",), _or_none(_are_integers), "give a list of token ids, or None"),
    (("logit_bias",), _or_none(_are_biases), "give a dict of numbers by token id, or None"),
    (("logits_processors",), _or_none(_are_functions), "give a list of functions, or None"),
    (("guided_decoding",), _or_none(_is_a(GuidedDecodingParams)), "give a GuidedDecodingParams, or None"),
    (("extra_args",), _or_none(_is_a(dict)), "give a dict, or None"),
    (("output_kind",), _is_a(RequestOutputKind), "use a RequestOutputKind"),
]
"""What fields have to be, and the way out if they are not."""
