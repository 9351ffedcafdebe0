# SPDX-License-Identifier: Apache-2.0
"""Requests that crash upstream's engine: a server answers 400, and the next client is served."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from forkjoin_engine import MODEL_FOLDER, hooks_for

from mytests.servers import API_SERVER, server
from mytests.tiers import cases

pytestmark = pytest.mark.model

HOOKS = ["--special-kwargs", json.dumps(vars(hooks_for("sync")))]
IN_ONE_PROCESS = ["--disable-frontend-multiprocessing"]
BODIES: dict[str, dict[str, Any]] = {
    "regex": {"guided_regex": "((("},
    "characters": {"guided_json": {"type": "object"}},
    "tokenizer": {"guided_regex": "a", "guided_decoding_backend": "guidance"},
    "recursion": {"guided_grammar": 'root ::= root "1" | "1"'},
    "stop": {"stop_token_ids": [99999], "min_tokens": 2},
    "allowed": {"allowed_token_ids": [99999]},
    "bias": {"logit_bias": {"99999": 1}},
    "nan": {"temperature": float("nan")},
    "prompt": {"prompt": [5, -5]},
    "logprobs": {"prompt_logprobs": 1000},
}


@pytest.fixture(
    scope="module",
    params=cases(
        {"hooks": HOOKS, "hooks-one-process": [*HOOKS, *IN_ONE_PROCESS], "off": [], "off-one-process": IN_ONE_PROCESS},
        ["hooks"],
    ),
)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server with each front end, with hooks and without."""
    with server(*API_SERVER, str(MODEL_FOLDER), *request.param, use_v1="0") as started:
        yield started


def post(address: str, body: dict[str, Any]) -> tuple[int, str]:
    """The status and the text of a completion's response."""
    fields = {"model": str(MODEL_FOLDER), "prompt": "1+2", "max_tokens": 8, "temperature": 0} | body
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(fields).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("name", BODIES)
def test_it_is_refused_and_others_are_served(name: str, address: str) -> None:
    """It is refused before it is queued."""
    status, text = post(address, BODIES[name])
    assert status == 400, text
    assert len(text) < 1000
    assert post(address, {})[0] == 200


def test_a_stream_says_so_in_its_first_event(address: str) -> None:
    """This is how upstream reports why a streaming request was refused."""
    status, text = post(address, BODIES["regex"] | {"stream": True})
    assert status in (200, 400)
    assert '"code": 400' in text or '"code":400' in text
    assert post(address, {})[0] == 200


def test_a_grammar_that_dies_later_ends_its_own_request(address: str) -> None:
    """The request ends with the text sampled so far."""
    status, text = post(address, {"guided_regex": "12\u1234"})
    choice = json.loads(text)["choices"][0]
    assert (status, choice["text"], choice["finish_reason"]) == (200, "12", "abort")
    assert post(address, {})[0] == 200
