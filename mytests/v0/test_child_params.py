# SPDX-License-Identifier: Apache-2.0
"""`child_sampling_params` fit the model when an engine starts; `mytests/rules/test_params.py` says what a child has."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mytests.harness.surgical import SYNC_HOOKS
from mytests.harness.v0.configuration import config_of
from vllm.config import SpecialKwargs
from vllm.engine import child_checks, compatibility
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


@pytest.mark.rule(9)
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


class NumberTokenizer:
    """A tokenizer whose words are the numbers of their tokens."""

    def __len__(self) -> int:
        return 200

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [int(word) for word in text.split()]


def resolve(overrides: Any, **config: Any) -> SpecialKwargs:
    """Hooks with these parameters for children, resolved as at startup, for a vocabulary of 128 tokens."""
    everything = config_of(skip_tokenizer_init=False, backend="xgrammar", reasoning_backend="", **config)
    everything.decoding_config = everything.model_config
    return compatibility.resolve(SpecialKwargs(promise_token_id=5, child_sampling_params=overrides), everything)


@pytest.fixture(autouse=True)
def tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's tokenizer is a `NumberTokenizer`."""
    group = SimpleNamespace(tokenizer=NumberTokenizer())
    monkeypatch.setattr(child_checks, "init_tokenizer_from_configs", lambda *args: group)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"logprobs": 1000}, "logprobs is 1000; use at most 20"),
        ({"stop_token_ids": [128]}, "stop_token_ids has 128, which is not in the model's vocabulary"),
        ({"logit_bias": {"128": 1.0}}, "logit_bias has 128"),
        ({"bad_words": ["150"]}, "tokens were specified as bad: .150"),
        ({"bad_words": ["word"]}, "invalid literal for int"),
        ({"logits_processors": ["builtins.max"]}, "one cannot be called or cloned"),
        (SamplingParams(logprobs=1000), "logprobs is 1000"),
    ],
)
def test_what_no_child_could_have_is_refused(overrides: Any, message: str) -> None:
    """The error names the hooks' field, and the field of the parameters."""
    with pytest.raises(ValueError, match=f"special_kwargs: child_sampling_params is .*; correct it: .*{message}"):
        resolve(overrides)


@pytest.mark.parametrize(
    "overrides",
    [None, {"temperature": 0.5}, {"stop_token_ids": [127], "logit_bias": {"127": 1.0}, "bad_words": ["127", "5 6"]}],
)
def test_what_a_child_can_have_is_taken(overrides: Any) -> None:
    """Parameters that a child can have are accepted unchanged."""
    assert resolve(overrides).child_sampling_params == overrides


def test_its_grammar_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried once, by default with the engine's backend: every child's grammar is the same."""
    tried: list[Any] = []

    def make(params: Any, *others: Any) -> Any:
        tried.append((params.regex, params.backend))
        if params.regex != "a":
            raise ValueError("regex cannot guide this model")
        return torch.nn.Identity()

    monkeypatch.setattr(child_checks, "get_local_guided_decoding_logits_processor", make)
    resolve({"guided_decoding": {"regex": "a"}})
    with pytest.raises(ValueError, match=r"child_sampling_params is .*; correct it: regex cannot guide this model"):
        resolve({"guided_decoding": {"regex": "(((", "backend": "outlines"}})
    assert tried == [("a", "xgrammar"), ("(((", "outlines")]


def test_without_a_tokenizer_there_are_no_words() -> None:
    """Without a tokenizer, neither words nor grammars can be configured."""
    config = config_of(skip_tokenizer_init=True)
    hooks = SpecialKwargs(promise_token_id=5, merge_separator="", child_sampling_params={"bad_words": ["5"]})
    with pytest.raises(ValueError, match="it needs a tokenizer; set skip_tokenizer_init=False, or leave it out"):
        compatibility.resolve(hooks, config)
