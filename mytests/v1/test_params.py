# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters as V1 has them in the core; `mytests/rules/test_params.py` has what both engines do."""

import dataclasses
from typing import Any

import pytest

from mytests.engine.surgical import EOS, SYNC_HOOKS, SurgicalEngine, finished, plan
from sequence_hooks.v1.core.params import inherit
from sequence_hooks.v1.core.requests import make_like
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
    engine.assert_empty()
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


def test_an_overridden_child_ends_as_the_model_does() -> None:
    """Upstream's front end adds the EOS to new requests; a child is not one of them."""
    child, _ = spawned({"temperature": 0.75, "max_tokens": None})
    assert (child.temperature, child.eos_token_id, child.max_tokens) == (0.75, EOS, 100)


def test_after_a_join_limits_are_what_is_left_of_them() -> None:
    """What it has sampled before counts as its prompt from then on; here four tokens."""
    _, joined = spawned(max_tokens=10, min_tokens=6, seed=3, prompt_logprobs=1)
    assert (joined.max_tokens, joined.min_tokens, joined.prompt_logprobs) == (6, 2, None)
    assert joined.seed not in (None, 3)
