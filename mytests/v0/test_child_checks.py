# SPDX-License-Identifier: Apache-2.0
"""`child_sampling_params` are checked against the model when an engine starts."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mytests.harness.v0.configuration import config_of
from vllm.config import SpecialKwargs
from vllm.engine import child_checks, compatibility
from vllm.sampling_params import SamplingParams


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
        ({"stop_token_ids": [99999], "min_tokens": 2}, "stop_token_ids has 99999"),
        ({"allowed_token_ids": [99999]}, "allowed_token_ids has 99999"),
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
