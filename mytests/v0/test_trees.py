# SPDX-License-Identifier: Apache-2.0
"""What the server adds to upstream's responses, usage included, without a server."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

import pytest

from mytests.harness.served_outputs import WAITING, completion, output
from sequence_hooks.results import Segment, Transcript, TreeTokens
from sequence_hooks.serving.trees import TreeStream, add_trees
from sequence_hooks.serving.usage import COUNT_TREE
from vllm.entrypoints.openai.protocol import (
    BatchRequestInput,
    ChatCompletionRequest,
    CompletionRequest,
    CompletionResponse,
    CompletionResponseChoice,
    UsageInfo,
)
from vllm.outputs import CompletionOutput

Way = Callable[[TreeStream, AsyncGenerator[str, None]], AsyncGenerator[str, None]]
WAYS = pytest.mark.parametrize("way", [TreeStream.of_parent, TreeStream.with_events])


def sent(*items: Any, num_samples: int = 1) -> list[Any]:
    """The chunks of a stream of ``items``; upstream makes one finishing chunk per completion."""

    async def results() -> AsyncIterator[Any]:
        for item in items:
            yield item

    async def made(results: AsyncIterator[Any]) -> AsyncGenerator[str, None]:
        async for item in results:
            prompt_index, result = item if isinstance(item, tuple) else (0, item)
            for each in result.outputs:
                choice = {"index": prompt_index * num_samples + each.index, "finish_reason": each.finish_reason}
                yield f"data: {json.dumps({'choices': [choice]})}\n\n"
        yield "data: [DONE]\n\n"

    async def collect() -> list[str]:
        stream = TreeStream({"id": "cmpl", "object": "text_completion"}, num_samples)
        return [line async for line in stream.with_events(made(stream.watched(results())))]

    *lines, last = asyncio.run(collect())
    assert last == "data: [DONE]\n\n"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def as_json(value: Any) -> dict[str, Any]:
    """A dataclass as a client gets it."""
    sent: dict[str, Any] = json.loads(json.dumps(asdict(value)))
    return sent


class TestStreams:
    def test_a_stream_without_hooks_is_upstreams(self) -> None:
        """No line is changed."""
        assert sent(output(completion())) == [{"choices": [{"index": 0, "finish_reason": "stop"}]}]

    def test_both_orders_are_sent(self) -> None:
        """If results of detached children replace what was sampled; logprobs stay with the engine."""
        both = completion(0, Segment(0, 1, "merged", "r_child_0"))
        both.sampled = Transcript("a", (7,), (Segment(0, 1, "sampled"),), None)
        both.assembled = Transcript("b", (8,), (Segment(0, 1, "merged", "r_child_0"),), None)
        ((choice,),) = (chunk["choices"] for chunk in sent(output(both)))
        assert (choice["sampled"]["text"], choice["assembled"]["token_ids"]) == ("a", [8])
        assert choice["assembled"]["segments"] == choice["segments"]

    def test_a_tree_is_sent_once(self) -> None:
        """Upstream repeats the finishing chunk of a sample while the others go on."""
        finished = output(completion(0, Segment(0, 2, "sampled")))
        other = CompletionOutput(1, "", [], None, None, None)
        both = output(other, *finished.outputs)
        choices = [chunk["choices"][0] for chunk in sent(output(other), both, finished)]
        assert ["segments" in choice for choice in choices] == [False, False, True, False]

    def test_a_wait_is_a_chunk_with_an_empty_choice(self) -> None:
        """A client that reads the first choice of each chunk finds one."""
        (chunk,) = sent((1, output(waiting=(WAITING,))), num_samples=2)
        (choice,) = chunk["choices"]
        assert (choice["index"], choice["text"], choice["finish_reason"]) == (2, "", None)
        assert choice["waiting"] == {**as_json(WAITING), "index": 2}

    @WAYS
    def test_what_upstreams_generator_raises_is_raised(self, way: Way) -> None:
        """The stream ends, and no reader waits for its next line."""

        async def broken() -> AsyncGenerator[str, None]:
            yield "data: {}\n\n"
            raise RuntimeError("gone")

        async def collect() -> list[str]:
            return [line async for line in way(TreeStream({}, 1), broken())]

        with pytest.raises(RuntimeError, match="gone"):
            asyncio.run(collect())

    @WAYS
    def test_a_client_that_is_gone_ends_upstreams_generator(self, way: Way) -> None:
        """This aborts the request."""
        ended = []

        async def endless() -> AsyncGenerator[str, None]:
            try:
                yield "data: {}\n\n"
                await asyncio.sleep(3600)
            finally:
                ended.append(True)

        async def leave() -> None:
            lines = way(TreeStream({}, 1), endless())
            await anext(lines)
            await lines.aclose()
            await asyncio.sleep(0.01)
            assert ended == [True]

        asyncio.run(leave())


CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    ("fields", "extra_args"),
    [
        ({"stream": True, "stream_children": True}, {"stream_children": True}),
        ({"stream": True, "stream_children": False}, None),
        ({"stream": False, "stream_children": True}, None),
        ({"stream": True, "stream_options": {**CONTINUOUS, "continuous_usage_stats": False}}, None),
        # Running counts cost a walk over the tree with each output.
        ({"stream": True, "stream_options": CONTINUOUS}, {COUNT_TREE: True}),
    ],
)
def test_a_stream_asks_for_what_it_needs(fields: dict[str, Any], extra_args: dict[str, Any] | None) -> None:
    """Of its children, or of its usage, beside any other extra arguments."""
    for beside in ({}, {"max_children": 2}):
        given: dict[str, Any] = {**fields, "vllm_xargs": beside or None}
        for request in (ChatCompletionRequest(messages=[], **given), CompletionRequest(prompt="", **given)):
            expected = {**beside, **(extra_args or {})}
            assert request.to_sampling_params(8, None, {}).extra_args == (expected or None)


def test_batches_are_of_our_requests() -> None:
    """Upstream looks the class up in its own module, and its server checks for that class."""
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}
    assert type(BatchRequestInput(**line).body) is ChatCompletionRequest


TREE = TreeTokens(sampled_below=5, merged=3, inserted=1)
"""The counts of a completion of 10 tokens, of which it has sampled 6."""

DETAILS = {"sampled_tokens": 11, "merged_tokens": 3, "inserted_tokens": 1}


def of_tree(index: int, num_tokens: int, tree: TreeTokens | None) -> CompletionOutput:
    """A finished completion."""
    made = completion(index)
    made.token_ids, made.tree_tokens = [7] * num_tokens, tree
    return made


@pytest.mark.parametrize(
    ("trees", "details"),
    [
        pytest.param([TREE], DETAILS, id="the details stand beside upstream's figures"),
        pytest.param(
            [TREE, TREE, None],
            {"sampled_tokens": 32, "merged_tokens": 6, "inserted_tokens": 2},
            id="a choice that met no hook has sampled all its tokens",
        ),
        pytest.param([None], None, id="without a hook no field is added"),
    ],
)
def test_the_usage_of_a_response(trees: list[TreeTokens | None], details: dict[str, int] | None) -> None:
    """Upstream's figures do not change, and those of choices add up."""
    completions = [of_tree(index, 10, tree) for index, tree in enumerate(trees)]
    choices = [CompletionResponseChoice(index=each.index, text="") for each in completions]
    total = 10 * len(trees)
    usage = UsageInfo(prompt_tokens=4, completion_tokens=total, total_tokens=4 + total)
    response = CompletionResponse(model="m", choices=choices, usage=usage)
    add_trees(response, completions)
    told: dict[str, Any] = json.loads(response.model_dump_json())["usage"]
    assert (told["prompt_tokens"], told["completion_tokens"], told["total_tokens"]) == (4, total, 4 + total)
    assert told.get("completion_tokens_details") == details


def stream_of(*lines: tuple[CompletionOutput, list[int], int | None]) -> list[dict[str, Any] | None]:
    """The usage in each chunk of a stream; a line has an output, the choices in its chunk, and its usage's tokens."""

    async def outputs() -> AsyncIterator[Any]:
        for made, _, _ in lines:
            yield output(made)

    async def upstreams(items: AsyncIterator[Any]) -> Any:
        for _, indices, num_tokens in lines:
            await anext(items)
            usage = None if num_tokens is None else {"completion_tokens": num_tokens}
            choices = [{"index": index, "finish_reason": None} for index in indices]
            yield f"data: {json.dumps({'choices': choices, 'usage': usage})}\n\n"

    async def collect() -> list[str]:
        stream = TreeStream({}, num_samples=2)
        return [line async for line in stream.of_parent(upstreams(stream.watched(outputs())))]

    return [json.loads(line.removeprefix("data: "))["usage"] for line in asyncio.run(collect())]


class TestUsageOfStreams:
    def test_the_last_chunk_has_the_request(self) -> None:
        """Its usage is that of all choices."""
        first, second = of_tree(0, 10, TREE), of_tree(1, 8, None)
        *others, last = stream_of((first, [0], None), (second, [1], None), (second, [], 18))
        assert others == [None, None]
        assert last == {"completion_tokens": 18, "completion_tokens_details": {**DETAILS, "sampled_tokens": 19}}

    def test_continuous_usage_is_of_the_choice_so_far(self) -> None:
        """It covers the same as upstream's figure beside it."""
        early = TreeTokens(sampled_below=2, merged=0, inserted=0)
        told = stream_of((of_tree(0, 1, None), [0], 1), (of_tree(0, 1, early), [0], 2), (of_tree(1, 1, None), [1], 5))
        details = {"sampled_tokens": 4, "merged_tokens": 0, "inserted_tokens": 0}
        assert told == [
            {"completion_tokens": 1},
            {"completion_tokens": 2, "completion_tokens_details": details},
            {"completion_tokens": 5},
        ]
