# SPDX-License-Identifier: Apache-2.0
"""Inherited and configured parameters of children are legal together, for every request that is accepted.

`mytests/rules/test_params.py` says what a child has.
"""

import dataclasses
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mytests.harness.surgical import SYNC_HOOKS
from vllm.engine.child_params import inherit
from vllm.engine.request_checks import SET_BY_THE_ENGINE, ModelFacts, check_request
from vllm.sampling_params import GuidedDecodingParams, RequestOutputKind, SamplingParams

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(1, 3),
    "best_of": st.none() | st.integers(1, 3),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.1, 2),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.01, 1),
    "top_k": st.integers(-1, 50),
    "min_p": st.floats(0, 1),
    "seed": st.none() | st.integers(-(2**63), 2**63),
    "stop": st.none() | st.text(min_size=1) | st.lists(st.text(min_size=1), max_size=2),
    "stop_token_ids": st.none() | st.lists(st.integers(0, 99), max_size=3),
    "ignore_eos": st.booleans(),
    "max_tokens": st.none() | st.integers(1, 20),
    "min_tokens": st.integers(0, 20),
    "logprobs": st.none() | st.booleans() | st.integers(0, 20),
    "prompt_logprobs": st.none() | st.booleans() | st.integers(0, 20),
    "detokenize": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "spaces_between_special_tokens": st.booleans(),
    "logits_processors": st.none() | st.just([print]),
    "include_stop_str_in_output": st.booleans(),
    "truncate_prompt_tokens": st.none() | st.integers(1, 9),
    "output_kind": st.sampled_from(RequestOutputKind),
    "guided_decoding": st.none() | st.just(GuidedDecodingParams(regex="a")),
    "logit_bias": st.none() | st.dictionaries(st.integers(0, 99), st.floats(-100, 100), max_size=2),
    "allowed_token_ids": st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=3),
    "extra_args": st.none() | st.just({"max_children": 1}),
    "bad_words": st.none() | st.lists(st.text(min_size=1), max_size=2),
}
"""All fields that a request may set."""


def test_every_field_is_drawn() -> None:
    """This fails for a field that upstream adds, until it is considered; fields that the engine sets are left out."""
    names = {name for name in SamplingParams.__struct_fields__ if name not in SET_BY_THE_ENGINE}
    assert names == set(FIELDS)


def legal(fields: dict[str, Any]) -> SamplingParams | None:
    """The parameters of a request, or None if it is not accepted."""
    try:
        params = SamplingParams(**fields)
        check_request(params, ModelFacts(100, 20))
    except (ValueError, TypeError, AssertionError):
        return None
    return params


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.fixed_dictionaries({}, optional=FIELDS), st.fixed_dictionaries({}, optional=FIELDS), st.booleans())
def test_children_of_every_request_have_legal_parameters(
    asked: dict[str, Any], configured: dict[str, Any], replaces_all: bool
) -> None:
    """This holds for any request and configuration, and at every depth; configured fields win."""
    params = legal(asked)
    assume(params is not None)
    assert params is not None
    # n samples are n sequences, each with its own tree.
    params.n = 1
    overrides: Any = {**configured, "n": 1, "best_of": None}
    try:
        hooks = dataclasses.replace(
            SYNC_HOOKS, child_sampling_params=SamplingParams(**overrides) if replaces_all else overrides
        )
    except ValueError:
        # Overrides that no request could have are refused at startup.
        assert legal(overrides if replaces_all else {"max_tokens": None, **overrides}) is None
        return
    for _ in range(2):
        params = inherit(params, hooks.child_sampling_params)
        check_request(params, ModelFacts(100, 20))
        if "max_tokens" in configured:
            assert params.max_tokens == configured["max_tokens"]


def test_a_handler_may_give_up_the_grammar_by_its_current_name() -> None:
    """It knows no engine: here the field is called ``guided_decoding``."""
    parent = SamplingParams(guided_decoding=GuidedDecodingParams(regex="a"), logits_processors=[print])
    child = inherit(parent, {"structured_outputs": None})
    assert (child.guided_decoding, child.logits_processors) == (None, None)
