# SPDX-License-Identifier: Apache-2.0
"""Completions and chats of a server with hooks, as OpenAI's client gets them, and sequences that wait for callers."""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, islice
from typing import Any, TypeVar

import httpx
import msgspec
import pytest
from forkjoin_task import PROMISE, SYNC, expected_output
from openai import BadRequestError

from mytests.harness.environment import EXAMPLES
from mytests.harness.served import (
    KEY,
    MESSAGES,
    NUM_CHILDREN,
    PROMPT,
    Server,
    arguments,
    check_tree,
    check_usage,
    waits_for_its_caller,
)
from mytests.harness.servers import until
from sequence_hooks.client import Tree, events
from sequence_hooks.results import Waiting

pytestmark = pytest.mark.model


def asked(served: Server, prompts: int | None, extra: dict[str, Any], **fields: Any) -> Any:
    """The answer to so many prompts, or to a chat; a current vLLM refuses several samples that are greedy."""
    fields = arguments(**extra) | {"temperature": 0.01} | fields
    if prompts is None:
        return served.client.chat.completions.create(messages=MESSAGES, **fields)
    return served.client.completions.create(prompt=[PROMPT] * prompts, **fields)


def text_of(choice: Any) -> str:
    """That of a choice, or of a part of it."""
    part = getattr(choice, "message", getattr(choice, "delta", None))
    return str(choice.text if part is None else part.content or "")


@pytest.mark.parametrize(("prompts", "n"), [(2, 2), (None, 1), (None, 2)])
def test_each_sample_has_its_own(served: Server, prompts: int | None, n: int) -> None:
    """Two prompts with n = 2 have four trees, with the joined texts, and the usage counts them all."""
    response = asked(served, prompts, {}, n=n)
    assert [choice.index for choice in response.choices] == [*range(n * (prompts or 1))]
    for choice in response.choices:
        assert text_of(choice) == expected_output(PROMPT)
        check_tree(choice)
    children = {child["request_id"] for choice in response.choices for child in choice.children}
    assert len(children) == len(response.choices) * NUM_CHILDREN
    check_usage(response.usage, response.choices)


@pytest.mark.parametrize(("prompts", "n", "stream_children"), [(1, 1, False), (2, 2, True), (None, 2, True)])
def test_a_stream_is_the_parents_alone(served: Server, prompts: int | None, n: int, stream_children: bool) -> None:
    """It is silent while they are BLOCKED. For who asks, children's text comes as chunks without choices."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = asked(served, prompts, {"stream_children": stream_children}, n=n, **options)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    told = [chunk.child for chunk in chunks if not chunk.choices]
    assert not any("logprobs" in delta for delta in told)
    assert len({(chunk.id, chunk.object) for chunk in (*chunks, last)}) == 1
    ends, most = [choice for choice in choices if hasattr(choice, "segments")], 0
    for index in range(n * (prompts or 1)):
        assert "".join(text_of(choice) for choice in choices if choice.index == index) == expected_output(PROMPT)
        (end,) = (choice for choice in ends if choice.index == index)
        check_tree(end)
        for child in end.children:
            deltas = [delta for delta in told if delta["request_id"] == child["request_id"]]
            texts = [delta["text"] for delta in deltas if delta["index"] == index]
            assert "".join(texts) == (child["text"] if stream_children else "")
            most = max(most, len(texts))
    assert (most > 1) is stream_children
    check_usage(last.usage, ends)


def test_continuous_usage_grows_to_the_whole(served: Server) -> None:
    """Of each choice by itself; it has details as soon as a hook has fired."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = asked(served, 1, {}, n=2, stream=True, stream_options=options)
    ends = [(choice, chunk.usage) for chunk in chunks for choice in chunk.choices if hasattr(choice, "segments")]
    for end, usage in ends:
        own = [chunk for chunk in chunks if chunk.choices[0].index == end.index]
        told = [chunk.usage.completion_tokens_details for chunk in own]
        counts = [details.sampled_tokens for details in told if details is not None]
        texts = accumulate(chunk.choices[0].text for chunk in own)
        assert [details is not None for details in told] == [PROMISE in text for text in texts]
        assert counts == sorted(counts)
        check_usage(usage, [end])
    assert {end.index for end, _ in ends} == {0, 1}
    check_usage(last.usage, [end for end, _ in ends])


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
        ({"stream_childs": True}, "'stream_childs' is not a field, but similar to 'stream_children'"),
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


Kind = TypeVar("Kind")


@pytest.mark.parametrize(("given", "text"), [({"text": " stone"}, " stone"), ({"token_ids": [7]}, None), ({}, "")])
def test_a_sequence_goes_on_with_what_its_caller_gives(served: Server, given: Any, text: str | None) -> None:
    """What is given stands after the sync token, as inserted; then the sequence samples on."""
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(lambda: served.choice(**waits_for_its_caller()))
        (request_id,) = until(served.waiting)
        response = served.call("POST", "/v1/resume_sequence", json={"request_id": request_id, **given})
        assert (response.status_code, response.json()) == (200, {"request_id": request_id})
        choice = answer.result()
    inserted = [segment for segment in choice.segments if segment["origin"] == "inserted"]
    assert bool(inserted) == bool(given)
    if text is not None:
        assert choice.text == f"{SYNC}{text}{SYNC}"


def test_a_stream_names_what_it_waits_for(served: Server) -> None:
    """The same in the stream, the list, and the tree at the end; each sample by itself."""
    # Several greedy samples are refused by a current vLLM; here only one token is allowed.
    sampled = {**waits_for_its_caller(), "n": 2, "temperature": 1.0}
    stream = events(served.client.completions.create(**sampled, stream=True))
    waiting = list(islice(_only(Waiting, stream), 2))
    assert sorted(waiting, key=str) == sorted(msgspec.convert(served.waits(), list[Waiting]), key=str)
    assert {event.index for event in waiting} == {0, 1}
    for event in waiting:
        served.call("POST", "/v1/resume_sequence", json={"request_id": event.request_id, "text": " stone"})
    assert {(tree.index, tree.request_id) for tree in _only(Tree, stream)} == {
        (event.index, event.request_id) for event in waiting
    }


def test_a_chat_names_what_it_waits_for(served: Server) -> None:
    """Clients that read the first choice of each chunk are not disturbed."""
    arguments = waits_for_its_caller() | {"messages": MESSAGES}
    del arguments["prompt"]
    text = ""
    for chunk in served.client.chat.completions.create(**arguments, stream=True):
        text += chunk.choices[0].delta.content or ""
        if waiting := getattr(chunk.choices[0], "waiting", None):
            served.call("POST", "/v1/resume_sequence", json={"request_id": waiting["request_id"], "text": " stone"})
    assert text == f"{SYNC} stone{SYNC}"


def _only(kind: type[Kind], stream: Iterator[Any]) -> Iterator[Kind]:
    return (event for event in stream if isinstance(event, kind))


@pytest.mark.parametrize(
    ("given", "status", "told"),
    [
        ({"text": "fork 1 " * 3_500_000}, 413, "and no sequence of this model has room for"),
        ({"text": "a" * 3000}, 400, "3000 characters, and the sequence has room for"),
        ({"text": "1 " * 300}, 400, "tokens, and the sequence has room for"),
        ({"token_ids": [7] * 300}, 400, "300 tokens, and the sequence has room for"),
        ({"token_ids": [10**6]}, 400, "not in the model's vocabulary"),
        ({"token_ids": [True]}, 400, "token_ids"),
        ({"text": "a", "token_ids": [7]}, 400, "text and token_ids are both set"),
        ({"texts": "a"}, 400, "unknown field `texts`"),
        ({"request_id": "nobody"}, 400, "no such sequence waits to be resumed"),
    ],
    ids=["24 MB", "characters", "tokens of a text", "tokens", "vocabulary", "type", "both", "field", "nobody"],
)
def test_what_does_not_fit_is_refused(served: Server, given: Any, status: int, told: str) -> None:
    """The sequence keeps waiting, and goes on with what does fit."""
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(lambda: served.choice(**waits_for_its_caller()))
        (request_id,) = until(served.waiting)
        response = served.call("POST", "/v1/resume_sequence", json={"request_id": request_id, **given})
        body = response.json()
        message = body.get("error", body)["message"]
        assert response.status_code == status and told in message and len(message) < 1000
        assert served.waiting() == [request_id]
        served.call("POST", "/v1/resume_sequence", json={"request_id": request_id})
        assert answer.result().text == f"{SYNC}{SYNC}"


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_goes_away_aborts_its_tree(served: Server, is_streamed: bool) -> None:
    """It would wait forever."""
    body = waits_for_its_caller()
    body |= {**body.pop("extra_body"), "stream": is_streamed}
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    client = http.client.HTTPConnection(served.address.removeprefix("http://"))
    client.request("POST", "/v1/completions", json.dumps(body), headers)
    until(served.waiting)
    client.close()
    until(lambda: not served.waiting())


def test_the_key_is_needed(served: Server) -> None:
    """As for all routes below ``/v1``; the page of running trees itself has no data in it."""
    for path in ("sequences_awaiting_resume", "live_requests", "live_requests/r"):
        assert httpx.get(f"{served.address}/v1/{path}").status_code == 401
    assert httpx.post(f"{served.address}/v1/resume_sequence", json={"request_id": "r"}).status_code == 401
    assert httpx.get(f"{served.address}/live").status_code == 200


def test_the_routes_are_documented(served: Server) -> None:
    """In the server's own description, with the fields of the body."""
    paths = served.call("GET", "/openapi.json").json()["paths"]
    body = paths["/v1/resume_sequence"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"request_id", "text", "token_ids"}
    assert "/v1/sequences_awaiting_resume" in paths
