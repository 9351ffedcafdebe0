# SPDX-License-Identifier: Apache-2.0
"""Chats with a server with hooks, as OpenAI's client gets them."""

from typing import Any

import pytest
from forkjoin_task import expected_output

from mytests.harness.served import MESSAGES, PROMPT, Server, arguments, check_tree, check_usage

pytestmark = pytest.mark.model


@pytest.mark.parametrize("n", [1, 2])
def test_each_choice_has_its_tree(served: Server, n: int) -> None:
    """The tree comes with the message, and the usage counts all."""
    response = served.client.chat.completions.create(messages=MESSAGES, n=n, **arguments() | {"temperature": 0.01})
    assert [choice.message.content for choice in response.choices] == [expected_output(PROMPT)] * n
    for choice in response.choices:
        check_tree(choice)
    check_usage(response.usage, response.choices)


def test_a_stream_ends_with_the_trees(served: Server) -> None:
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
