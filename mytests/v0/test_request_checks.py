# SPDX-License-Identifier: Apache-2.0
"""Requests that would crash upstream's engine in a step are refused beforehand, and how others enter it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.handlers.builtin import SyncHandler
from vllm.engine import admission, async_llm_engine
from vllm.engine.admission import admit
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.engine.multiprocessing.client import MQLLMEngineClient
from vllm.engine.request_checks import MAX_SAMPLES, ModelFacts, check_request, only_value_errors
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import GuidedDecodingParams, SamplingParams

MODEL = ModelFacts(vocab_size=100, max_logprobs=20)
CACHING = ModelFacts(vocab_size=100, max_logprobs=20, caches_prefixes=True)
LEGAL: list[dict[str, Any]] = [
    {},
    {"n": MAX_SAMPLES},
    {"stop_token_ids": [99], "min_tokens": 2},
    {"stop_token_ids": [100]},
    {"allowed_token_ids": [0, 99]},
    {"allowed_token_ids": np.array([1, 2])},
    {"logit_bias": {"99": 5, 0: float("-inf")}},
    {"logprobs": 20, "prompt_logprobs": 20},
    {"temperature": np.float32(0.5), "max_tokens": np.int64(3), "top_k": 2**40},
    {"seed": 2**64 - 1},
    {"seed": -(2**63)},
    {"n": 3, "seed": 5},
    {"guided_decoding": GuidedDecodingParams(regex="a"), "bad_words": ["a"], "extra_args": {"x": 1}},
    {"logits_processors": [max], "stop": "x", "ignore_eos": 1},
]
ILLEGAL: list[tuple[dict[str, Any], str]] = [
    ({"stop_token_ids": [99, 100], "min_tokens": 2}, "stop_token_ids has 100, .*use ids from 0 to 99"),
    ({"stop_token_ids": [-1], "min_tokens": 1}, "stop_token_ids has -1"),
    ({"allowed_token_ids": [100]}, "allowed_token_ids has 100"),
    ({"allowed_token_ids": "12"}, "allowed_token_ids is '12'; give a list of token ids"),
    ({"allowed_token_ids": [1.5]}, "allowed_token_ids is"),
    ({"logit_bias": {100: 1.0}}, "logit_bias has 100"),
    ({"logit_bias": {"x": 1.0}}, "logit_bias is .*; give a dict of numbers by token id"),
    ({"logit_bias": {1: float("nan")}}, "logit_bias is"),
    ({"logprobs": 21}, "logprobs is 21; use at most 20"),
    ({"prompt_logprobs": 21}, "prompt_logprobs is 21"),
    ({"logprobs": 2.5}, "logprobs is 2.5; use an integer, or None"),
    ({"temperature": float("nan")}, "temperature is nan; use a finite number"),
    ({"repetition_penalty": float("inf")}, "repetition_penalty is inf"),
    ({"max_tokens": 2.5}, "max_tokens is 2.5"),
    ({"min_tokens": 1.5}, "min_tokens is 1.5; use an integer"),
    ({"seed": "abc"}, "seed is 'abc'; use an integer"),
    ({"seed": np.int64(5)}, "seed is"),
    ({"seed": 2**64}, "seed is 18446744073709551616; use an integer of 64 bits"),
    ({"seed": 2**64 - 1, "n": 2}, "seed is"),
    ({"seed": -(2**63) - 1}, "seed is"),
    ({"n": 16_385}, "n is 16385; use at most 16384"),
    ({"output_kind": 7}, "output_kind is 7; use a RequestOutputKind"),
    ({"detokenize": "no"}, "detokenize is 'no'; use True or False"),
    ({"ignore_eos": 2}, "ignore_eos is 2"),
    ({"bad_words": [5]}, "bad_words is .*; give a list of strings"),
    ({"bad_words": "word"}, "bad_words is 'word'"),
    ({"logits_processors": ["a.b"]}, "logits_processors is .*; give a list of functions"),
    ({"logits_processors": max}, "logits_processors is"),
    ({"guided_decoding": {"regex": "a"}}, "guided_decoding is .*; give a GuidedDecodingParams"),
    ({"extra_args": [1]}, "extra_args is .*; give a dict"),
    ({"logit_bias": {10**5000: 1.0}}, "logit_bias"),
]


@pytest.mark.parametrize("fields", LEGAL, ids=str)
def test_what_works_is_taken(fields: dict[str, Any]) -> None:
    """All that upstream accepts and survives is accepted, numpy's numbers included."""
    check_request(SamplingParams(**fields), MODEL)


@pytest.mark.parametrize(("fields", "message"), ILLEGAL, ids=[message for _, message in ILLEGAL])
def test_what_would_fail_in_a_step_is_refused(fields: dict[str, Any], message: str) -> None:
    """The error names the field, its value and the way out, and is short whatever the value."""
    with pytest.raises(ValueError, match=message) as caught:
        check_request(SamplingParams(**fields), MODEL)
    assert len(str(caught.value)) < 250


def test_an_engines_facts_are_those_of_its_configuration() -> None:
    """Prefix caching may be left open, which is off on V0; an engine may allow no logprobs, of which none are fewer."""
    model: Any = SimpleNamespace(get_vocab_size=lambda: 7, max_logprobs=0)
    for caches in (True, False, None):
        cache: Any = SimpleNamespace(enable_prefix_caching=caches)
        assert ModelFacts.of(model, cache) == ModelFacts(7, 0, caches is True)
    check_request(SamplingParams(), ModelFacts(7, 0))


class Waiting(SyncHandler):
    """A handler of a user."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(SpecialKwargs(sync_token_id=1))


def admitted(params: Any, hooks: SpecialKwargs | None, prompt: tuple[int, ...] = (3,), kind: str = "token") -> None:
    """Admit a request."""
    admit("r", {"type": kind, "prompt_token_ids": [*prompt]}, params, hooks, MODEL)


def plain(**extra_args: Any) -> SamplingParams:
    return SamplingParams(extra_args=extra_args or None)


class TestAdmission:
    @pytest.mark.parametrize("prompt", [(), (0,), (7, 0)])
    def test_a_prompt_lies_in_the_vocabulary(self, prompt: tuple[int, ...]) -> None:
        """Upstream checks only the largest id, and refuses the empty one."""
        admitted(SamplingParams(), None, prompt)
        with pytest.raises(ValueError, match="prompt has -5, which is not in the model's vocabulary; use ids from 0 u"):
            admitted(SamplingParams(), None, (*prompt, -5, -1))

    @pytest.mark.rule(9)
    @pytest.mark.parametrize(
        "fields",
        [
            {"promise_token_id": 1},
            {"promise_token": "<go>", "trigger_by": "text"},
            {"handlers": {5: f"{__name__}.Waiting"}},
        ],
    )
    def test_a_request_whose_children_would_fail_is_refused(self, fields: dict[str, Any]) -> None:
        """A child's min_tokens looks up the stop token, which does not exist; any hook but a sync may have children."""
        hooks = SpecialKwargs(child_sampling_params={"min_tokens": 2}, **fields)
        with pytest.raises(ValueError, match="with the server's child_sampling_params, stop_token_ids has 999"):
            admitted(SamplingParams(stop_token_ids=[999]), hooks)

    def test_what_trainers_may_do_wrong_is_told_or_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """See `mytests.core.test_flat_logprobs` and `test_cut_off`."""
        told = list[str]()
        monkeypatch.setattr(admission.logger, "warning_once", told.append)
        admitted(SamplingParams(logprobs=0), SpecialKwargs(sync_token_id=1))
        assert len(told) == 1
        admitted(SamplingParams(), SpecialKwargs(promise_token_id=1), (3, 1))
        assert len(told) == 2
        with pytest.raises(ValueError, match="logprobs is 0"):
            admitted(SamplingParams(logprobs=0), SpecialKwargs(sync_token_id=1, flat_logprobs="refuse"))

    def test_one_that_has_no_such_children_is_admitted(self) -> None:
        """It has switched hooks off, its children have no parameters of their own, or it is up to upstream: to pool."""
        admit("r", {}, PoolingParams(), SpecialKwargs(sync_token_id=1), MODEL)
        overrides = {"min_tokens": 2}
        hooks = SpecialKwargs(promise_token_id=1, child_sampling_params=overrides)
        for extra_args in ({"hooks": False}, {"max_child_depth": 0}):
            admitted(SamplingParams(stop_token_ids=[999], extra_args=extra_args), hooks)
        for others in (
            SpecialKwargs(promise_token_id=1),
            SpecialKwargs(sync_token_id=1, child_sampling_params=overrides),
        ):
            admitted(SamplingParams(stop_token_ids=[999]), others)

    def test_an_image_is_refused(self) -> None:
        """A child that has lost its KV would compute it from the tokens alone; without hooks there is none."""
        hooks = SpecialKwargs(promise_token_id=1)
        with pytest.raises(ValueError, match=r"no multi_modal_data here, .*; leave it out, .* or use the plug-in"):
            admitted(plain(), hooks, kind="multimodal")
        admitted(plain(hooks=False), hooks, kind="multimodal")
        admitted(plain(), None, kind="multimodal")


def test_every_error_refuses_one_request() -> None:
    """Upstream's engine in the server's process dies of any error but a ValueError; Ctrl-C still gets through."""
    for error, told, message in (
        (IndexError("list index"), ValueError, "^The request cannot be processed: IndexError: list index"),
        (ValueError("as it is"), ValueError, "^as it is$"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ):
        with pytest.raises(told, match=message), only_value_errors():
            raise error


@pytest.mark.parametrize("num_logprobs", [0, 2])
def test_logprobs_of_a_prompt_that_may_be_cached_are_refused(num_logprobs: int) -> None:
    """Upstream's sampler has no rows for tokens found in the prefix cache, and fails in a step."""
    with pytest.raises(ValueError, match=rf"^prompt_logprobs is {num_logprobs}; .*enable_prefix_caching=False"):
        check_request(SamplingParams(prompt_logprobs=num_logprobs), CACHING)


def added_to(monkeypatch: pytest.MonkeyPatch, params: Any) -> Any:
    """The parameters with which a request reaches the engine's loop."""
    engine: Any = object.__new__(AsyncLLMEngine)
    decoding = SimpleNamespace(backend="xgrammar", reasoning_backend="")
    engine.engine = SimpleNamespace(decoding_config=decoding, model_config=None)

    async def tokenizer_of(self: Any, lora_request: Any) -> str:
        return f"tokenizer of {lora_request}"

    async def build(sampling_params: SamplingParams, **given: Any) -> tuple[str, str]:
        assert sampling_params.guided_decoding is not None
        return f"compiled {sampling_params.guided_decoding.regex}", given["tokenizer"]

    async def add(self: Any, request_id: str, prompt: str, params: Any, **others: Any) -> Any:
        return params

    monkeypatch.setattr(AsyncLLMEngine, "get_tokenizer", tokenizer_of)
    monkeypatch.setattr(async_llm_engine.upstream, "build_guided_decoding_logits_processor_async", build)
    monkeypatch.setattr(async_llm_engine.upstream.AsyncLLMEngine, "add_request", add)
    return asyncio.run(engine.add_request("r", "prompt", params, lora_request="adapter"))


def test_a_grammar_is_compiled_before_the_loop_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's task compiles it, so a slow grammar delays no step; all else reaches the loop as the same object."""
    guided, plain = SamplingParams(guided_decoding=GuidedDecodingParams(regex="a")), SamplingParams()
    assert added_to(monkeypatch, guided) == ("compiled a", "tokenizer of adapter")
    assert added_to(monkeypatch, plain) is plain


def test_an_error_in_adding_a_request_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes a ValueError, because any other error ends upstream's loop."""

    async def add(self: Any, *args: Any, **kwargs: Any) -> None:
        raise KeyError("prompt")

    engine_class = AsyncLLMEngine._engine_class
    monkeypatch.setattr(engine_class.__bases__[0], "add_request_async", add)
    with pytest.raises(ValueError, match="The request cannot be processed: KeyError: 'prompt'"):
        asyncio.run(object.__new__(engine_class).add_request_async(request_id="r"))


def configured(kind: str, special_kwargs: SpecialKwargs | None) -> Any:
    """An engine of one kind that was never started, as a server has it."""
    model = SimpleNamespace(get_vocab_size=lambda: 100, max_logprobs=20)
    cache = SimpleNamespace(enable_prefix_caching=False)
    config = SimpleNamespace(model_config=model, cache_config=cache, special_kwargs=special_kwargs)
    if kind == "remote":
        client: Any = MQLLMEngineClient.__new__(MQLLMEngineClient)
        client.vllm_config = config
        return client
    engine: Any = AsyncLLMEngine.__new__(AsyncLLMEngine)
    engine.engine = SimpleNamespace(vllm_config=config)
    return engine


@pytest.mark.parametrize("kind", ["in process", "remote"])
@pytest.mark.parametrize(
    ("request_id", "params", "told"),
    [
        ("r", {"extra_args": {"max_children": 1000}}, "max_children is 1000; the engine allows at most 16"),
        ("r", {"stop_token_ids": [999], "min_tokens": 1}, "stop_token_ids has 999"),
        ("r_child_0", {}, "request_id is 'r_child_0'"),
    ],
)
def test_a_bad_request_is_refused_before_its_answer_begins(
    kind: str, request_id: str, params: dict[str, Any], told: str
) -> None:
    """`generate` itself raises, so that a server answers a stream with 400, too."""
    engine = configured(kind, SpecialKwargs(promise_token_id=1))
    with pytest.raises(ValueError, match=told):
        engine.generate("a prompt", SamplingParams(**params), request_id)


@pytest.mark.parametrize("kind", ["in process", "remote"])
def test_a_good_request_is_generated_as_upstream_does(kind: str) -> None:
    """Nothing happens before the first output is asked for; without hooks an id or a limit is nobody's concern."""
    made = [
        configured(kind, SpecialKwargs(promise_token_id=1)).generate("a prompt", SamplingParams(), request_id="r"),
        configured(kind, None).generate("a prompt", SamplingParams(extra_args={"max_children": 1000}), "r_child_0"),
    ]
    assert [each.ag_running for each in made] == [False, False]
