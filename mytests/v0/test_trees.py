# SPDX-License-Identifier: Apache-2.0
"""What the server adds to upstream's responses, without a server."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

import pytest

from mytests.harness.served_outputs import DELTA, WAITING, completion, output
from sequence_hooks.results import Segment, Transcript
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


class TestStreams:
    def test_a_stream_without_hooks_is_upstreams(self) -> None:
        """No line is changed."""
        assert sent(output(completion())) == [{"choices": [{"index": 0, "finish_reason": "stop"}]}]

    def test_the_finishing_chunk_has_the_tree(self) -> None:
        """It is the tree of its own choice: here the second prompt's, with two samples each."""
        (chunk,) = sent((1, output(completion(1, Segment(0, 2, "sampled")))), num_samples=2)
        (choice,) = chunk["choices"]
        assert choice["index"] == 3
        assert choice["segments"] == [{"start": 0, "end": 2, "origin": "sampled", "child": None, "is_replaced": False}]
        assert (choice["children"], choice["joins"]) == ([], [])

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

    def test_a_delta_is_a_chunk_of_its_own(self) -> None:
        """It is sent though upstream makes no chunk of it, and names the choice that its tree belongs to."""
        (chunk,) = sent((1, output(deltas=(DELTA,))), num_samples=2)
        assert (chunk["id"], chunk["choices"]) == ("cmpl", [])
        assert chunk["child"] == {
            "request_id": "r_child_0",
            "parent_id": "r",
            "index": 2,
            "spawn_position": 2,
            "text": "B",
            "token_ids": [66],
            "finish_reason": None,
            "label": "",
            "num_ending": 0,
        }

    def test_a_wait_is_a_chunk_with_an_empty_choice(self) -> None:
        """A client that reads the first choice of each chunk finds one."""
        (chunk,) = sent((1, output(waiting=(WAITING,))), num_samples=2)
        (choice,) = chunk["choices"]
        assert (choice["index"], choice["text"], choice["finish_reason"]) == (2, "", None)
        assert choice["waiting"] == {**asdict(WAITING), "index": 2, "children": ["r_child_0"]}

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


def test_choices_have_the_trees_of_their_completions() -> None:
    """They are extra fields, which upstream's response models allow; without a hook there are none."""
    choices = [CompletionResponseChoice(index=index, text="") for index in range(2)]
    response = CompletionResponse(model="m", choices=choices, usage=UsageInfo())
    add_trees(response, [completion(0), completion(1, Segment(0, 2, "sampled"))])
    first, second = (choice.model_dump() for choice in choices)
    assert "segments" not in first
    assert second["segments"][0]["origin"] == "sampled"


@pytest.mark.parametrize(("streamed", "wanted"), [(True, True), (True, False), (False, True)])
def test_a_stream_asks_for_its_children(streamed: bool, wanted: bool) -> None:
    """It asks by ``stream_children``, beside any other extra arguments."""
    fields: dict[str, Any] = {"stream": streamed, "stream_children": wanted, "vllm_xargs": {"max_children": 2}}
    chat = ChatCompletionRequest(messages=[], **fields)
    text = CompletionRequest(prompt="", **fields)
    for request in (chat, text):
        extra_args = request.to_sampling_params(8, None, {}).extra_args
        assert extra_args == ({"max_children": 2} | ({"stream_children": True} if streamed and wanted else {}))


def test_batches_are_of_our_requests() -> None:
    """Upstream looks the class up in its own module, and its server checks for that class."""
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}
    assert type(BatchRequestInput(**line).body) is ChatCompletionRequest


@pytest.mark.parametrize("continuous", [True, False])
def test_continuous_usage_asks_for_running_counts(continuous: bool) -> None:
    """Others do not, since running counts cost a walk over the tree with each output."""
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    fields: dict[str, Any] = {"stream": True, "stream_options": options}
    for request in (ChatCompletionRequest(messages=[], **fields), CompletionRequest(prompt="", **fields)):
        assert request.to_sampling_params(8, None, {}).extra_args == ({COUNT_TREE: True} if continuous else None)
