# SPDX-License-Identifier: Apache-2.0
"""How requests enter the asynchronous engine: grammars are compiled first, and a bad request fails alone."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sequence_hooks.config import SpecialKwargs
from vllm.engine import async_llm_engine
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.engine.multiprocessing.client import MQLLMEngineClient
from vllm.sampling_params import GuidedDecodingParams, SamplingParams


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
    """The caller's task compiles it, so a slow grammar delays no step."""
    params = SamplingParams(guided_decoding=GuidedDecodingParams(regex="a"))
    assert added_to(monkeypatch, params) == ("compiled a", "tokenizer of adapter")


def test_all_else_comes_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters without a grammar reach the loop as the same object."""
    params = SamplingParams()
    assert added_to(monkeypatch, params) is params


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
