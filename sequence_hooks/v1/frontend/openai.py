# SPDX-License-Identifier: Apache-2.0
"""Upstream's OpenAI server, whose choices carry their trees; see `sequence_hooks.serving`.

Each function extends one method of upstream's handlers, and gets it as its first argument.
"""

import inspect
import time
from collections.abc import AsyncGenerator, Callable
from itertools import chain
from typing import Any

from sequence_hooks.serving.outline_requests import ask, asked_of, has_outlines, with_aliases
from sequence_hooks.serving.outline_view import read
from sequence_hooks.serving.trees import CHAT_CHUNK, TreeStream, add_trees, keep_last
from sequence_hooks.serving.usage import COUNT_TREE
from sequence_hooks.v1.releases.installed import completion_usage_type
from vllm.entrypoints.serve.utils.api_utils import should_include_usage
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

STREAM_CHILDREN = "stream_children"


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
    """`request_trees`, after a request for an outline has become one that gets it."""
    special_kwargs = serving.engine_client.output_processor.special_kwargs
    if has_outlines(special_kwargs):
        try:
            ask(request, special_kwargs, _constrain)
        except ValueError as error:
            raise VLLMValidationError(str(error)) from None
    return await request_trees(upstream, serving, request, *args, **kwargs)


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
    given["result_generator"] = _as_read(given)
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
    given["result_generator"] = keep_last(_as_read(given), results)
    response = await upstream(**given)
    if hasattr(response, "choices"):
        add_trees(response, results[0].outputs, completion_usage_type())
    return response


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


def _constrain(request: Any, regex: str) -> None:
    if request.structured_outputs is not None:
        raise ValueError("structured_outputs is given, and an outline has a grammar of its own; leave it out")
    request.structured_outputs = StructuredOutputsParams(regex=regex)


def _as_read(given: dict[str, Any]) -> Any:
    """A chat's outputs; without the outline, where one was asked for."""
    request, results = given["request"], given["result_generator"]
    asked = asked_of(request)
    return results if asked is None else read(results, asked, bool(request.stream), bool(request.logprobs))


def _named(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name, whatever their order in this release."""
    return dict(inspect.signature(function).bind(*args, **kwargs).arguments)
