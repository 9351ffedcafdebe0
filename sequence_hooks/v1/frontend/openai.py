# SPDX-License-Identifier: Apache-2.0
"""Upstream's OpenAI server, whose choices carry their trees; see `sequence_hooks.serving`.

Each function extends one method of upstream's handlers, and gets it as its first argument.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any

from pydantic import Field

from sequence_hooks.serving.live.questions import note_question
from sequence_hooks.serving.outlines.forms import Chat, Form, Response
from sequence_hooks.serving.outlines.requests import (
    ALIAS,
    STREAM_CHILDREN,
    Asking,
    answered,
    asked_by,
    asking,
    has_outlines,
    misspelled_field,
    refused,
    refused_fields,
    with_aliases,
)
from sequence_hooks.serving.trees import CHAT_CHUNK, TreeStream, add_trees, keep_last, tree_of
from sequence_hooks.serving.usage import COUNT_TREE
from sequence_hooks.v1.releases.installed import completion_usage_type
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.utils.api_utils import should_include_usage
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams


async def request_trees(upstream: Callable[..., Any], serving: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """A request asks the engine in ``vllm_xargs`` for what its own fields ask for."""
    asked: dict[str, Any] = {}
    wanted = (request.model_extra or {}).get(STREAM_CHILDREN)
    if wanted is not None:
        # As it is: the engine refuses a bad value, as it refuses one in ``vllm_xargs``.
        asked[STREAM_CHILDREN] = wanted
    _, is_continuous = should_include_usage(request.stream_options, serving.enable_force_include_usage)
    if request.stream and is_continuous:
        asked[COUNT_TREE] = True
    if asked:
        request.vllm_xargs = {**(request.vllm_xargs or {}), **asked}
    return await upstream(serving, request, *args, **kwargs)


async def request_chat(upstream: Callable[..., Any], serving: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """`request_trees`; a request for an outline gets it, or what the model answers without one."""
    asked = _asking(serving, Chat(request))
    if asked is None:
        return await request_trees(upstream, serving, request, *args, **kwargs)
    return await answered(asked, lambda each: request_trees(upstream, serving, each, *args, **kwargs))


async def request_response(upstream: Callable[..., Any], serving: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Upstream's answer to a request for a response; one that asks for an outline gets it, or an answer without one."""
    asked = _asking(serving, Response(request))
    if asked is None:
        return await upstream(serving, request, *args, **kwargs)
    return await answered(asked, lambda each: upstream(serving, each, *args, **kwargs))


async def request_batch(upstream: Callable[..., Any], serving: Any, request: Any, raw_request: Any = None) -> Any:
    """Upstream's answer to a batch of chats. If they ask for outlines, each of them is answered by itself."""
    if not has_outlines(_hooks_of(serving)) or asked_by(request) is None:
        return await upstream(serving, request, raw_request)
    chats = [request.to_chat_completion_request(each) for each in request.messages]
    answering = [asyncio.ensure_future(serving.create_chat_completion(chat, raw_request)) for chat in chats]
    try:
        answers = await asyncio.gather(*answering)
    except BaseException:
        # One that is refused ends the others.
        for each in answering:
            each.cancel()
        raise
    for answer in answers:
        if not hasattr(answer, "choices"):
            return answer
    whole = answers[0]
    whole.choices = [choice for answer in answers for choice in answer.choices]
    for number, choice in enumerate(whole.choices):
        choice.index = number
    whole.usage = _sum([answer.usage for answer in answers])
    return whole


async def check_model(upstream: Callable[..., Any], serving: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Upstream's check of a request's model, and of our fields. What asks for an outline is refused where nobody reads
    that."""
    special_kwargs = _hooks_of(serving)
    if special_kwargs is None:
        return await upstream(serving, request, *args, **kwargs)
    answers_outlines, reason = has_outlines(special_kwargs), misspelled_field(request, special_kwargs)
    if answers_outlines and not isinstance(request, (ChatCompletionRequest, ResponsesRequest)):
        reason = refused(request) or reason
    if reason is not None:
        return serving.create_error_response(VLLMValidationError(reason))
    found = await upstream(serving, request, *args, **kwargs)
    if answers_outlines and found is not None and found.error.param == "model":
        found.error.message += f" With {ALIAS!r} after it, a name asks for an outline."
    return found


async def request_messages(upstream: Callable[..., Any], serving: Any, request: Any, raw_request: Any = None) -> Any:
    """Upstream's answer to a request of Anthropic's form, which asks for an outline by its model's name alone."""
    has_body = raw_request is not None and has_outlines(_hooks_of(serving))
    reason = refused_fields(await raw_request.json()) if has_body else None
    if reason is not None:
        return serving.create_error_response(VLLMValidationError(reason))
    return await upstream(serving, request, raw_request)


async def list_models(upstream: Callable[..., Any], serving: Any, *args: Any, **kwargs: Any) -> Any:
    """Upstream's list of models, with the names that ask for an outline."""
    found = await upstream(serving, *args, **kwargs)
    if has_outlines(serving.engine_client.output_processor.special_kwargs):
        found.data = with_aliases(found.data)
    return found


def completion_stream(upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> AsyncGenerator[str, None]:
    """Upstream's lines of a streamed completion, with trees."""
    given = _named(upstream, args, kwargs)
    return _stream(upstream, given, {"object": "text_completion", "created": given["created_time"]})


def chat_stream(upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> AsyncGenerator[str, None]:
    """Upstream's lines of a streamed chat completion, with trees."""
    given = _named(upstream, args, kwargs)
    return _stream(upstream, given, {"object": CHAT_CHUNK, "created": int(time.time())})


def completion_response(upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Upstream's response of a completion, with trees."""
    given = _named(upstream, args, kwargs)
    response = upstream(**given)
    completions = chain.from_iterable(result.outputs for result in given["final_res_batch"])
    add_trees(response, completions, completion_usage_type())
    return response


async def chat_response(upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Upstream's response of a chat completion, with trees; an error as it is."""
    given = _named(upstream, args, kwargs)
    results: list[Any] = []
    given["result_generator"] = keep_last(given["result_generator"], results)
    response = await upstream(**given)
    if hasattr(response, "choices"):
        add_trees(response, results[0].outputs, completion_usage_type())
    return response


async def tokens_response(upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Upstream's response of ``/inference/v1/generate``, with trees; an error as it is."""
    given = _named(upstream, args, kwargs)
    results: list[Any] = []
    given["result_generator"] = keep_last(given["result_generator"], results)
    response = await upstream(**given)
    trees = [tree_of(completion) for completion in results[0].outputs] if hasattr(response, "choices") else []
    if not any(trees):
        return response
    kind: Any = type(response)
    return _telling(kind).model_construct(**dict(response), trees=trees)


async def tokens_stream(upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> AsyncGenerator[str, None]:
    """Upstream's lines of a stream of ``/inference/v1/generate``, with trees."""
    given = _named(upstream, args, kwargs)
    stream = TreeStream({}, given["request"].sampling_params.n or 1)
    made = upstream(**{**given, "result_generator": stream.watched(given["result_generator"])})
    async for line in stream.of_parent(made):
        yield line


@cache
def _telling(kind: Any) -> Any:
    """The class of a response whose choices take no other fields, which adds their trees to its body."""

    class Telling(kind):  # type: ignore[misc]
        trees: list[dict[str, Any]] = Field(exclude=True)

        def model_dump(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            body: dict[str, Any] = super().model_dump(*args, **kwargs)
            for choice, tree in zip(body["choices"], self.trees, strict=True):
                choice.update(tree)
            return body

    return Telling


async def _stream(
    upstream: Callable[..., Any], given: dict[str, Any], chunk: dict[str, Any]
) -> AsyncGenerator[str, None]:
    request = given["request"]
    common = {"id": given["request_id"], **chunk, "model": given["model_name"]}
    stream = TreeStream(common, request.n or 1)
    made = upstream(**{**given, "result_generator": stream.watched(given["result_generator"])})
    processor = given["self"].engine_client.output_processor
    may_wait = processor.special_kwargs.sync_resume == "manual"
    has_events = may_wait or bool((request.vllm_xargs or {}).get(STREAM_CHILDREN))
    async for line in stream.with_events(made) if has_events else stream.of_parent(made):
        yield line


def _asking(serving: Any, form: Form) -> Asking | None:
    special_kwargs = _hooks_of(serving)
    note_question(special_kwargs, form)
    try:
        return asking(form, special_kwargs, _constrain) if has_outlines(special_kwargs) else None
    except ValueError as error:
        raise VLLMValidationError(str(error)) from None


def _sum(usages: Sequence[Any]) -> Any:
    """The usage of several answers together."""
    total = usages[0].model_copy(deep=True)
    parts = [each.completion_tokens_details for each in usages if each.completion_tokens_details is not None]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        setattr(total, name, sum(getattr(each, name) for each in usages))
    if parts:
        names = {name for each in parts for name, value in each.model_dump().items() if value is not None}
        values = {name: sum(getattr(each, name, None) or 0 for each in parts) for name in sorted(names)}
        total.completion_tokens_details = type(parts[0])(**values)
    return total


def _hooks_of(serving: Any) -> Any:
    """The hooks of a server's engine; None if it has none. What needs no engine knows the list of models."""
    clients = (getattr(each, "engine_client", None) for each in (serving, getattr(serving, "models", None)))
    processors = (getattr(client, "output_processor", None) for client in clients)
    found = (getattr(each, "special_kwargs", None) for each in processors)
    return next((each for each in found if each is not None), None)


def _constrain(request: Any, regex: str) -> None:
    if request.structured_outputs is not None:
        raise ValueError("structured_outputs is given, and an outline has a grammar of its own; leave it out")
    request.structured_outputs = StructuredOutputsParams(regex=regex)


def _named(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name, whatever their order in this release."""
    return dict(inspect.signature(function).bind(*args, **kwargs).arguments)
