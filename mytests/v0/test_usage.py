# SPDX-License-Identifier: Apache-2.0
"""Tokens that children sampled and contributed are counted in the usage of responses and streams."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from mytests.harness.served_outputs import completion, output
from sequence_hooks.results import TreeTokens
from sequence_hooks.serving.trees import TreeStream, add_trees
from vllm.entrypoints.openai.protocol import CompletionResponse, CompletionResponseChoice, UsageInfo
from vllm.outputs import CompletionOutput

TREE = TreeTokens(sampled_below=5, merged=3, inserted=1)
"""The counts of a completion of 10 tokens, of which it has sampled 6."""

DETAILS = {"sampled_tokens": 11, "merged_tokens": 3, "inserted_tokens": 1}


def of_tree(index: int, num_tokens: int, tree: TreeTokens | None) -> CompletionOutput:
    """A finished completion."""
    made = completion(index)
    made.token_ids, made.tree_tokens = [7] * num_tokens, tree
    return made


def response_of(*completions: CompletionOutput) -> dict[str, Any]:
    """The usage of a response, as a client gets it."""
    choices = [CompletionResponseChoice(index=each.index, text="") for each in completions]
    num_tokens = sum(len(each.token_ids) for each in completions)
    usage = UsageInfo(prompt_tokens=4, completion_tokens=num_tokens, total_tokens=4 + num_tokens)
    response = CompletionResponse(model="m", choices=choices, usage=usage)
    add_trees(response, completions)
    told: dict[str, Any] = json.loads(response.model_dump_json())["usage"]
    return told


class TestResponses:
    def test_the_details_stand_beside_upstreams_figures(self) -> None:
        """Upstream's figures do not change."""
        usage = response_of(of_tree(0, 10, TREE))
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, 10, 14)
        assert usage["completion_tokens_details"] == DETAILS

    def test_choices_add_up(self) -> None:
        """A choice that met no hook has sampled all its tokens."""
        usage = response_of(of_tree(0, 10, TREE), of_tree(1, 10, TREE), of_tree(2, 8, None))
        assert usage["completion_tokens_details"] == {"sampled_tokens": 30, "merged_tokens": 6, "inserted_tokens": 2}

    def test_without_a_hook_it_is_upstreams(self) -> None:
        """No field is added."""
        assert "completion_tokens_details" not in response_of(of_tree(0, 8, None))


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


class TestStreams:
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
