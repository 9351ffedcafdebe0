# SPDX-License-Identifier: Apache-2.0
"""Completions and chats of a server with hooks, as OpenAI's client gets them."""

import os
import subprocess
import sys
from itertools import accumulate
from typing import Any

import pytest
from forkjoin_task import PROMISE, expected_output
from openai import BadRequestError

from mytests.harness.environment import EXAMPLES
from mytests.harness.served import KEY, MESSAGES, NUM_CHILDREN, PROMPT, Server, arguments, check_tree, check_usage

pytestmark = pytest.mark.model


def test_each_sample_has_its_own(served: Server) -> None:
    """Two prompts with n = 2 have four trees, with the joined texts, and the usage counts them all."""
    sampled = arguments() | {"temperature": 0.01}
    response = served.client.completions.create(prompt=[PROMPT, PROMPT], n=2, **sampled)
    assert [choice.index for choice in response.choices] == [0, 1, 2, 3]
    for choice in response.choices:
        assert choice.text == expected_output(PROMPT)
        check_tree(choice)
    children = {child["request_id"] for choice in response.choices for child in choice.children}
    assert len(children) == 4 * NUM_CHILDREN
    check_usage(response.usage, response.choices)


@pytest.mark.parametrize("stream_children", [False, True])
def test_a_stream_is_the_parents_alone(served: Server, stream_children: bool) -> None:
    """It is silent while the parent is BLOCKED. For who asks, children's text comes as chunks without choices."""
    extra = arguments(stream_children=stream_children)
    chunks: list[Any] = list(served.client.completions.create(prompt=PROMPT, stream=True, **extra))
    told = [chunk.child for chunk in chunks if not chunk.choices]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected_output(PROMPT)
    check_tree(chunks[-1].choices[0])
    for child in chunks[-1].choices[0].children:
        texts = [delta["text"] for delta in told if delta["request_id"] == child["request_id"]]
        assert "".join(texts) == (child["text"] if stream_children else "")
        assert (len(texts) > 1) is stream_children


def test_continuous_usage_grows_to_the_whole(served: Server) -> None:
    """It has details as soon as a hook has fired."""
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    stream = served.client.completions.create(prompt=PROMPT, stream=True, stream_options=options, **arguments())
    chunks: list[Any] = list(stream)
    told = [chunk.usage.completion_tokens_details for chunk in chunks]
    counts = [details.sampled_tokens for details in told if details is not None]
    texts = accumulate("".join(choice.text for choice in chunk.choices) for chunk in chunks)
    assert [details is not None for details in told] == [PROMISE in text for text in texts]
    assert counts == sorted(counts)
    check_usage(chunks[-1].usage, chunks[-2].choices)


def test_a_request_may_switch_its_hooks_off(served: Server) -> None:
    """Its choices and its usage are then upstream's."""
    response = served.client.completions.create(prompt=PROMPT, **arguments(vllm_xargs={"hooks": 0}))
    assert not hasattr(response.choices[0], "segments") and PROMISE in response.choices[0].text
    assert response.usage is not None and response.usage.completion_tokens_details is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"vllm_xargs": {"max_children": 1000}}, "max_children is 1000; the engine allows at most 16"),
        ({"vllm_xargs": {"max_childs": 1}}, "'max_childs' is not a field, but similar to 'max_children'"),
        ({"stream_children": "maybe"}, "stream_children.*maybe"),
    ],
)
def test_a_bad_limit_is_the_clients_error(served: Server, extra: dict[str, Any], message: str, stream: bool) -> None:
    """The error names the field, its value and the way out. A stream has not begun then; the log has no traceback."""
    before = served.log.read_text().count("Traceback")
    with pytest.raises(BadRequestError, match=message):
        served.client.completions.create(prompt=PROMPT, stream=stream, **arguments(**extra))
    assert served.log.read_text().count("Traceback") == before


def test_the_example_streams_a_tree(served: Server) -> None:
    """It prints what docs/serving.md shows."""
    command = [sys.executable, "stream_tree.py", served.address]
    environment = os.environ | {"OPENAI_API_KEY": KEY}
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=EXAMPLES, env=environment).stdout
    assert "child 2  'e'" in printed and "children: ['enost', 'aelpp', 'eirrv']" in printed


@pytest.mark.parametrize("n", [1, 2])
def test_each_choice_of_a_chat_has_its_tree(served: Server, n: int) -> None:
    """The tree comes with the message, and the usage counts all."""
    response = served.client.chat.completions.create(messages=MESSAGES, n=n, **arguments() | {"temperature": 0.01})
    assert [choice.message.content for choice in response.choices] == [expected_output(PROMPT)] * n
    for choice in response.choices:
        check_tree(choice)
    check_usage(response.usage, response.choices)


def test_a_stream_of_a_chat_ends_with_the_trees(served: Server) -> None:
    """Each choice has its own; children come as chunks without choices, and the last chunk has the usage."""
    streamed: Any = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0.01}
    stream = served.client.chat.completions.create(messages=MESSAGES, n=2, **arguments(stream_children=True) | streamed)
    *chunks, last = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    told = [chunk.model_extra["child"] for chunk in chunks if not chunk.choices]
    for index in range(2):
        own = [choice for choice in choices if choice.index == index]
        assert "".join(choice.delta.content or "" for choice in own) == expected_output(PROMPT)
        check_tree(own[-1])
        for child in own[-1].children:
            texts = [delta["text"] for delta in told if delta["request_id"] == child["request_id"]]
            assert "".join(texts) == child["text"]
    check_usage(last.usage, [choice for choice in choices if hasattr(choice, "segments")])
