# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters as V1 has them in the core; `mytests/rules/test_params.py` has what both engines do."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from mytests.harness.surgical import EOS, SYNC_HOOKS, SurgicalEngine, finished, plan
from mytests.harness.v1.characters import Detokenizable
from sequence_hooks.v1.core.params import ParamsCompleter, copied, inherit, params_after_join
from sequence_hooks.v1.core.requests import make_like
from sequence_hooks.v1.prior_output import prior_output_of
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.request import Request


def spawned(overrides: Any = None, **params: Any) -> tuple[SamplingParams, SamplingParams]:
    """The parameters of a child, and those of its parent after their join, as upstream's requests have them."""
    engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, child_sampling_params=overrides))
    parent = engine.add(**params)
    script = plan(r="a!b.cdefgh", r_child_0="ABCDEFG")
    engine.run_until(lambda: "r_child_0" in engine.statuses(), script)
    child = engine.scheduler.requests["r_child_0"].sampling_params
    engine.run_until(lambda: "r_child_0" not in engine.statuses() and engine.statuses().get("r") == "RUNNING", script)
    joined = parent.sampling_params
    engine.run(script)
    assert finished(engine).children
    assert child is not None and joined is not None
    return child, joined


@pytest.mark.parametrize("has_ended", [True, False, None])
def test_a_child_reasons_if_its_parent_does(has_ended: bool | None) -> None:
    """Its grammar begins when its reasoning has ended, for which upstream would look in its prompt alone."""
    params = SamplingParams(max_tokens=2, structured_outputs=StructuredOutputsParams(choice=["a"]))
    parent = Request("r", [1], params, None, reasoning_ended=has_ended, reasoning_parser_kwargs={"a": 1})
    child = make_like(parent, "r_child_0", [1, 2], params, []).structured_output_request
    assert child is not None
    assert (child.reasoning_ended, child.reasoning_parser_kwargs) == (has_ended, {"a": 1})


def test_ids_may_be_strings() -> None:
    """As the keys of JSON are."""
    assert inherit(SamplingParams(), {"logit_bias": {"7": 1.5}}).logit_bias == {7: 1.5}
    with pytest.raises(ValueError, match="Expected `int`, got `str`"):
        inherit(SamplingParams(), {"logit_bias": {"seven": 1.5}})


def test_a_child_ends_as_the_model_does_and_may_find_its_context() -> None:
    """Upstream's front end adds the EOS to new requests, and keeps who asks for prompt logprobs from the cache."""
    child, _ = spawned({"temperature": 0.75, "max_tokens": None}, prompt_logprobs=1)
    assert (child.temperature, child.eos_token_id, child.max_tokens) == (0.75, EOS, 100)
    assert (child.prompt_logprobs, child.skip_reading_prefix_cache) == (None, False)


@pytest.mark.parametrize(("min_tokens", "num_left"), [(6, 2), (3, 0)])
def test_after_a_join_limits_are_what_is_left_of_them(min_tokens: int, num_left: int) -> None:
    """What it has sampled before counts as its prompt from then on; here four tokens, which may be enough."""
    _, joined = spawned(max_tokens=10, min_tokens=min_tokens, seed=3, prompt_logprobs=1)
    assert (joined.max_tokens, joined.min_tokens, joined.prompt_logprobs) == (6, num_left, None)
    assert joined.seed not in (None, 3)


def test_what_a_caller_gives_is_not_copied() -> None:
    """Its size may be any; only the arguments' names and values are the child's own."""
    script = ["of any size"]
    params = SamplingParams(extra_args={"script": script}, stop=["x"])
    copy = copied(params)
    assert copy.extra_args == params.extra_args and copy.extra_args is not params.extra_args
    assert (copy.extra_args or {})["script"] is script
    assert copy.stop == ["x"] and copy.stop is not params.stop


@pytest.mark.parametrize(("tokenizer", "bad_words"), [(Detokenizable(), [[ord("a"), ord("b")]]), (None, None)])
def test_parameters_are_completed_as_upstreams_front_end_does(tokenizer: Any, bad_words: Any) -> None:
    """Bad words are looked up, if there is a tokenizer; the model's end is added; and all of it is verified."""
    verified: list[SamplingParams] = []
    given = SamplingParams(bad_words=["ab"], ignore_eos=False)
    params = ParamsCompleter(tokenizer, EOS, {"eos_token_id": [EOS, 9]}, verified.append).complete(given)
    assert (params.eos_token_id, params.stop_token_ids) == (EOS, [9])
    words = params.bad_words_token_ids
    assert (words if words is None else words[:1]) == bad_words
    assert verified == [params]


@pytest.mark.parametrize(("num_replaced", "is_told"), [(0, False), (2, True)])
def test_a_repetition_penalty_has_to_know_what_was_replaced(num_replaced: int, is_told: bool) -> None:
    """It knows the rest of what was sampled from the context."""
    params = SamplingParams(max_tokens=9, repetition_penalty=1.5)
    sequence = SimpleNamespace(sampling_params=params, request=Request("r", [1], params, None))
    branch: Any = SimpleNamespace(sequence=sequence, num_sampled=2, sampled_token_ids=[7, 8], num_replaced=num_replaced)
    assert prior_output_of(params_after_join(branch)) == [7, 8] * is_told
