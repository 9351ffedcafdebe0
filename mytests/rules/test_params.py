# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters in a tree: children's own, and a parent's after a join."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.dialect import DIALECT
from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine, begun, finished, inherit, plan
from sequence_hooks.tree.child_params import derive_seed
from vllm.sampling_params import SamplingParams

GRAMMAR = {DIALECT.grammar_field: {"choice": ["a"]}}
BEST_OF = {"best_of": 4} if "best_of" in SamplingParams.__struct_fields__ else {}
SEED_OF_123 = 3751671686878481423


def child_params(overrides: Any = None, index: int = 0, **params: Any) -> SamplingParams:
    """The parameters of a child whose parent has ``params``."""
    engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, child_sampling_params=overrides, children_per_promise=2))
    engine.add(**params)
    engine.run_until(lambda: f"r_child_{index}" in engine.statuses(), plan(r="!bcd"))
    found: SamplingParams = engine.request_of(f"r_child_{index}").sampling_params
    return found


@pytest.mark.rule(9)
class TestInherited:
    def test_a_child_has_its_parents_adapter_priority_headers_and_arrival(self) -> None:
        """It belongs to the same request; its KV depends on the adapter, and its turn on priority and arrival."""
        engine = SurgicalEngine(SYNC_HOOKS, max_loras=1)
        parent: Any = engine.add(adapter=1, priority=7)
        parent.trace_headers = {"traceparent": "0"}
        engine.run_until(lambda: "r_child_0" in engine.statuses(), plan(r="!bcd"))
        child = engine.request_of("r_child_0")
        assert child.lora_request is not None and child.trace_headers
        for name in ("lora_request", "priority", "trace_headers", "arrival_time"):
            assert getattr(child, name) == getattr(parent, name)

    @pytest.mark.parametrize(
        ("overrides", "expected"),
        [
            (None, {"temperature": 0.5, "stop": ["x"], "max_tokens": 7, "stop_token_ids": [7]}),
            ({"temperature": 0.25}, {"temperature": 0.25, "stop": ["x"], "max_tokens": 7, "n": 1}),
            ({"stop": ["abc"]}, {"temperature": 0.5, "stop": ["abc"], "output_text_buffer_length": 2}),
            (SamplingParams(max_tokens=3), {"temperature": 1.0, "stop": [], "max_tokens": 3, "seed": None}),
        ],
        ids=["a-copy", "a-field", "a-stop-string", "all"],
    )
    def test_what_is_given_replaces_its_parents(self, overrides: Any, expected: dict[str, Any]) -> None:
        """The other fields stay, except for prompt logprobs, which a child has none of."""
        own: dict[str, Any] = {"temperature": 0.5, "stop": ["x"], "max_tokens": 7, "stop_token_ids": [7]}
        params = child_params(overrides, prompt_logprobs=1, **own)
        assert {name: getattr(params, name) for name in expected} == expected
        assert params.prompt_logprobs is None


class TestContradictions:
    @pytest.mark.rule(9)
    @pytest.mark.parametrize(
        ("asked", "given", "expected"),
        [
            ({"min_tokens": 6}, {"max_tokens": 4}, {"max_tokens": 4, "min_tokens": 4}),
            ({"max_tokens": 4}, {"min_tokens": 6}, {"max_tokens": 6, "min_tokens": 6}),
            ({"max_tokens": None}, {"min_tokens": 20}, {"max_tokens": None, "min_tokens": 20}),
            ({"detokenize": False}, {"stop": ["x"]}, {"detokenize": True, "stop": ["x"]}),
            ({"stop": ["x"]}, {"detokenize": False}, {"detokenize": False, "stop": []}),
            ({"detokenize": False}, {"stop": []}, {"detokenize": False, "stop": []}),
            ({"n": 3} | BEST_OF, {"temperature": 0.0}, {"n": 1, "temperature": 0.0} | dict.fromkeys(BEST_OF)),
            ({"prompt_logprobs": 5}, {"logprobs": 2}, {"prompt_logprobs": 5, "logprobs": 2}),
            ({"temperature": 0.5}, GRAMMAR, {"temperature": 0.5}),
            ({}, {"temperature": 0.001}, {"temperature": 0.01}),
            ({"min_tokens": 6}, SamplingParams(max_tokens=3), {"max_tokens": 3, "min_tokens": 0}),
            ({"max_tokens": 9, "min_tokens": 4}, None, {"max_tokens": 9, "min_tokens": 4}),
        ],
        ids=str,
    )
    def test_what_contradicts_an_override_gives_way(
        self, asked: dict[str, Any], given: Any, expected: dict[str, Any]
    ) -> None:
        """Inherited parameters change only as far as needed to be valid; the request's own stay the same."""
        params = SamplingParams(**asked)
        child = inherit(params, given)
        assert {name: getattr(child, name) for name in expected} == expected
        assert child is not params and params == SamplingParams(**asked)

    def test_an_override_that_upstream_corrects_is_corrected_quietly(self, caplog: pytest.LogCaptureFixture) -> None:
        """Otherwise a client could choose the length of the log: one line per child."""
        params = SamplingParams(temperature=0.001)
        assert len(caplog.records) == 1
        assert inherit(SamplingParams(), {"temperature": 0.001}).temperature == params.temperature
        assert len(caplog.records) == 1


@pytest.mark.rule(9)
class TestSeeds:
    def test_seeds_are_the_same_in_every_process(self) -> None:
        """A seed is a digest of what it is derived from; upstream takes 63 bits."""
        assert derive_seed(1, 2, 3) == SEED_OF_123
        assert 0 <= derive_seed("x") < 2**63

    @pytest.mark.parametrize("index", [0, 1])
    def test_a_childs_seed_is_of_its_own_its_parents_and_its_number(self, index: int) -> None:
        """This holds whether or not its seed is overridden; without a seed it has none."""
        assert child_params(None, index, seed=5).seed == derive_seed(5, 5, index)
        assert child_params({"seed": 7}, index, seed=5).seed == derive_seed(7, 5, index)
        assert child_params(None, index).seed is None

    @pytest.mark.parametrize("overrides", [None, {"seed": 7}], ids=["inherited", "given"])
    def test_every_sequence_of_every_request_has_its_own(self, overrides: dict[str, Any] | None) -> None:
        """Children of one promise, those of other requests, and their own children."""
        hooks = dataclasses.replace(SYNC_HOOKS, max_child_depth=2, children_per_promise=2)
        engine = SurgicalEngine(dataclasses.replace(hooks, child_sampling_params=overrides))
        children = [f"{name}_child_{index}" for name in "rs" for index in range(2)]
        below = [f"{name}_child_{index}" for name in children for index in range(2)]
        for seed, name in enumerate("rs"):
            engine.add(name, seed=seed)
        script = plan(**dict.fromkeys(["r", "s", *children], "!" + "a" * 30), **dict.fromkeys(below, "b" * 30))
        engine.run_until(lambda: {*children, *below} <= set(engine.statuses()), script)
        seeds = {engine.request_of(name).sampling_params.seed for name in [*children, *below]}
        assert len(seeds) == 4 + 8 and None not in seeds

    @pytest.mark.parametrize(("seed", "after"), [(5, derive_seed(5, "join", 0)), (None, None)])
    def test_a_resumed_parent_draws_other_numbers(self, seed: int | None, after: int | None) -> None:
        """A prefill restarts the random stream, so the seed must be another; without a seed there is none."""
        engine = SurgicalEngine(SYNC_HOOKS)
        with begun(engine, plan(r="a!.zzzz", r_child_0="BC"), lambda: engine.num_sampled("r") > 3, seed=seed):
            assert engine.request_of("r").sampling_params.seed == after
        assert finished(engine).text == "aBCzzzz"
