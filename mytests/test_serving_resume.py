# SPDX-License-Identifier: Apache-2.0
"""Sequences that wait for their caller, over HTTP, and clients that go away."""

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from forkjoin_engine import MODEL_FOLDER, hooks_for
from forkjoin_task import held_out_prompts

from mytests.servers import API_SERVER, PATIENCE_SECONDS, server, until

pytestmark = pytest.mark.model

MODEL = str(MODEL_FOLDER)
PROMPT = held_out_prompts(1, 8, "sync")[0]
SEPARATE, TOGETHER = "engine in a process of its own", "all in one process"
BODY: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "temperature": 0}


@pytest.fixture(scope="module", params=[SEPARATE, TOGETHER])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server whose sync tokens wait for a caller."""
    options = ["--disable-frontend-multiprocessing"] if request.param == TOGETHER else []
    fields = json.dumps(vars(hooks_for("sync", sync_resume="manual")))
    with server(*API_SERVER, MODEL, "--special-kwargs", fields, *options, use_v1="0") as found:
        yield found


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    """What a GET, or with ``body`` a POST, returns."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"})) as response:
        return json.load(response)


def waiting(address: str) -> list[str]:
    """The request ids of the sequences that wait."""
    ids: list[str] = call(f"{address}/v1/sequences_awaiting_resume")["request_ids"]
    return ids


def test_a_sequence_goes_on_with_what_its_caller_says(address: str) -> None:
    """The caller's text comes after the children's results, in the same response."""
    answers: list[Any] = []
    request = threading.Thread(target=lambda: answers.append(call(f"{address}/v1/completions", BODY)), daemon=True)
    request.start()
    (request_id,) = until(lambda: waiting(address))
    assert call(f"{address}/v1/resume_sequence", {"request_id": request_id, "text": "\n= "}) == {
        "request_id": request_id
    }
    request.join(timeout=PATIENCE_SECONDS)
    (choice,) = answers[0]["choices"]
    inserted = [segment for segment in choice["segments"] if segment["origin"] == "inserted"]
    assert inserted and "\n= " in choice["text"] and waiting(address) == []


@pytest.mark.parametrize(
    ("given", "status", "told"),
    [
        ({"text": "fork 1 " * 3_500_000}, 413, "and no sequence of this model has room for"),
        ({"text": "a" * 3000}, 400, "3000 characters, and the sequence has room for"),
        ({"text": "1 " * 300}, 400, "tokens, and the sequence has room for"),
        ({"token_ids": [7] * 300}, 400, "300 tokens, and the sequence has room for"),
        ({"token_ids": [10**6]}, 400, "not in the model's vocabulary"),
        ({"token_ids": [True, 2.0]}, 400, "token_ids"),
    ],
    ids=["24 MB", "characters", "tokens of a text", "tokens", "out of the vocabulary", "no integers"],
)
def test_what_does_not_fit_is_refused(address: str, given: dict[str, Any], status: int, told: str) -> None:
    """Nothing is lost: the sequence keeps waiting, and goes on with what does fit."""
    answers: list[Any] = []
    request = threading.Thread(target=lambda: answers.append(call(f"{address}/v1/completions", BODY)), daemon=True)
    request.start()
    (request_id,) = until(lambda: waiting(address))
    with pytest.raises(urllib.error.HTTPError) as error:
        call(f"{address}/v1/resume_sequence", {"request_id": request_id, **given})
    message = json.load(error.value)["message"]
    assert error.value.code == status and told in message and len(message) < 1000
    assert waiting(address) == [request_id]
    call(f"{address}/v1/resume_sequence", {"request_id": request_id, "text": "\n= "})
    request.join(timeout=30)
    assert "\n= " in answers[0]["choices"][0]["text"]


def test_a_resume_of_nobody_is_refused(address: str) -> None:
    """The server goes on."""
    with pytest.raises(urllib.error.HTTPError) as error:
        call(f"{address}/v1/resume_sequence", {"request_id": "nobody"})
    assert error.value.code == 400 and b"nobody" in error.value.read()
    assert waiting(address) == []


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_goes_away_aborts_its_tree(address: str, is_streamed: bool) -> None:
    """The tree is aborted while BLOCKED; otherwise it would wait forever."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    client = http.client.HTTPConnection(host, int(port))
    body = json.dumps(BODY | {"stream": is_streamed})
    client.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    until(lambda: waiting(address))
    client.close()
    until(lambda: waiting(address) == [])
