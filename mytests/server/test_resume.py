# SPDX-License-Identifier: Apache-2.0
"""Sequences that wait for their callers, over HTTP, and clients that go away."""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

import httpx
import msgspec
import pytest
from forkjoin_task import SYNC

from mytests.harness.served import KEY, MESSAGES, Server, waits_for_its_caller
from mytests.harness.servers import until
from sequence_hooks.client import Tree, events
from sequence_hooks.results import Waiting

pytestmark = pytest.mark.model

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
