# SPDX-License-Identifier: Apache-2.0
"""Requests that hooks cannot serve are refused as upstream refuses its clients' mistakes."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sequence_hooks import SpecialKwargs
from sequence_hooks.v1 import plugin, request_checks
from sequence_hooks.v1.frontend.input_processor import HookInputProcessor
from sequence_hooks.v1.frontend.openai import request_trees
from sequence_hooks.v1.prior_output import PRIOR_OUTPUT
from sequence_hooks.v1.wire import INJECTED_BY, RESUME
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.input_processor import InputProcessor

HOOKS = SpecialKwargs(promise_token_id=1, sync_token_id=2)


def request(request_id: str, params: SamplingParams | None = None, **fields: Any) -> EngineCoreRequest:
    """A request as upstream's input processor makes it."""
    return EngineCoreRequest(
        **{
            "request_id": request_id,
            "prompt_token_ids": [1],
            "mm_features": None,
            "sampling_params": params or SamplingParams(),
            "pooling_params": None,
            "arrival_time": 0.0,
            "lora_request": None,
            "cache_salt": None,
            "data_parallel_rank": None,
            **fields,
        }
    )


def asked_by(is_forced: bool = False, **fields: Any) -> Any:
    """What a streamed body with these fields asks the engine for, on a server that may force usage on its clients."""
    body = {"model_extra": None, "vllm_xargs": None, "stream": True, "stream_options": None, **fields}

    async def upstream(serving: object, given: Any) -> Any:
        return given.vllm_xargs

    serving = SimpleNamespace(enable_force_include_usage=is_forced)
    return asyncio.run(request_trees(upstream, serving, SimpleNamespace(**body)))


@pytest.mark.parametrize(
    ("request_id", "fields", "message"),
    [
        *((name, {}, "request_id is ") for name in ("r_child_0", "r" * 1001, "\ud800", "sequence_hooks")),
        # Its session would end at the tokens at which a tree waits.
        ("r", {"resumable": True}, "a prompt cannot be streamed; send it whole"),
        # A child that has lost its KV would compute it from the tokens.
        ("r", {"prompt_embeds": torch.ones(2, 4)}, r"no prompt_embeds: .* hooks=0 in extra_args"),
    ],
)
def test_what_hooks_cannot_use_is_refused(
    request_id: str, fields: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where upstream is told not to make ids unique."""
    monkeypatch.setenv("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "1")
    with pytest.raises(VLLMValidationError, match=message):
        HookInputProcessor.assign_request_id(request(request_id, **fields))


def test_a_prompt_without_tokens_is_taken_without_hooks() -> None:
    """It has no children that would compute it."""
    fields: dict[str, Any] = {"prompt_embeds": torch.ones(2, 4)}
    HookInputProcessor.assign_request_id(request("r", SamplingParams(extra_args={"hooks": 0}), **fields))


@pytest.mark.parametrize("name", [PRIOR_OUTPUT, RESUME, INJECTED_BY])
def test_what_hooks_tell_the_core_and_the_worker_cannot_come_from_a_user(name: str) -> None:
    """Whatever it is, they would believe it."""
    processor = HookInputProcessor.__new__(HookInputProcessor)
    processor.special_kwargs = HOOKS
    with pytest.raises(VLLMValidationError, match=f"extra_args has '{name}', which .*; leave it out"):
        processor._validate_params(SamplingParams(extra_args={name: "abc"}))


def test_what_trainers_may_do_wrong_is_told_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `mytests.core.test_flat_logprobs` and `test_cut_off`; a prompt of other than tokens is up to upstream."""
    processor, told = HookInputProcessor.__new__(HookInputProcessor), list[str]()
    monkeypatch.setattr(request_checks.logger, "warning_once", told.append)
    processor.special_kwargs = HOOKS
    request_checks.check_extra_args(HOOKS, SamplingParams(logprobs=0))
    monkeypatch.setattr(InputProcessor, "process_inputs", lambda processor, given: given)
    for tokens in (None, [5], [1]):
        assert len(told) == 1
        processor.process_inputs(request("r", prompt_token_ids=tokens))
    assert len(told) == 2
    processor.special_kwargs = replace(HOOKS, flat_logprobs="refuse")
    with pytest.raises(VLLMValidationError, match="logprobs is 0"):
        processor._validate_params(SamplingParams(logprobs=0))


def asynchronous_engine(monkeypatch: pytest.MonkeyPatch, kind: type[InputProcessor]) -> Any:
    """One that was never started, with an input processor of one kind."""
    plugin._extend_front_ends()
    monkeypatch.setattr(AsyncLLM, "shutdown", lambda self: None)
    engine: Any = AsyncLLM.__new__(AsyncLLM)
    engine.input_processor = kind.__new__(kind)
    engine.input_processor.special_kwargs = HOOKS
    return engine


@pytest.mark.parametrize(
    ("request_id", "extra_args", "prompt", "told"),
    [
        ("r", {"max_children": 1000}, {"prompt_token_ids": [1]}, "max_children is 1000; the engine allows at most 16"),
        ("r", {"stream_children": "maybe"}, "a prompt", "stream_children is 'maybe'; use True or False"),
        ("r", {RESUME: "abc"}, "a prompt", f"extra_args has '{RESUME}'"),
        ("r_child_0", None, "a prompt", "request_id is 'r_child_0'"),
        ("r", {"continues": 1}, {"prompt_token_ids": [5, 1]}, "continues is 1, and at index 1 a promise"),
        ("r", None, {"prompt_embeds": torch.ones(2, 4)}, "a prompt has no prompt_embeds"),
    ],
)
def test_a_bad_request_is_refused_before_its_answer_begins(
    request_id: str, extra_args: Any, prompt: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`generate` itself raises, so that a server answers a stream with 400, too."""
    engine = asynchronous_engine(monkeypatch, HookInputProcessor)
    with pytest.raises(VLLMValidationError, match=told):
        engine.generate(prompt, SamplingParams(extra_args=extra_args), request_id)


def test_a_good_request_is_generated_as_upstream_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is any on an engine without hooks: nothing happens before the first output is asked for."""
    hooked = asynchronous_engine(monkeypatch, HookInputProcessor)
    plain = asynchronous_engine(monkeypatch, InputProcessor)
    bad = SamplingParams(extra_args={"max_children": 1000})
    made = [
        hooked.generate(prompt="a prompt", sampling_params=SamplingParams(), request_id="r", priority=1),
        plain.generate("a prompt", bad, "r_child_0"),
    ]
    assert [each.ag_running for each in made] == [False, False]


@pytest.mark.parametrize("wanted", [True, 1, "abc", [], {"a": 1}])
def test_what_a_body_asks_for_reaches_the_check_of_limits(wanted: Any) -> None:
    """It is neither converted nor dropped, so a bad value gets the same error as one in ``vllm_xargs``."""
    asked = asked_by(model_extra={"stream_children": wanted}, vllm_xargs={"of": "others"})
    assert asked == {"of": "others", "stream_children": wanted}


@pytest.mark.parametrize(
    ("options", "is_forced", "asked"),
    [
        (None, False, None),
        (SimpleNamespace(include_usage=True, continuous_usage_stats=False), False, None),
        (SimpleNamespace(include_usage=True, continuous_usage_stats=True), False, {"count_tree": True}),
        (None, True, {"count_tree": True}),
    ],
)
def test_continuous_usage_has_trees_counted(options: Any, is_forced: bool, asked: Any) -> None:
    """Other requests are spared the walk over their trees."""
    assert asked_by(stream_options=options, is_forced=is_forced) == asked
