# SPDX-License-Identifier: Apache-2.0
"""Odd bodies on every route of a real server: none ends it or harms another client.

After each body another client's request, which forks and joins, must get the right answer.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from forkjoin_engine import hooks_for
from forkjoin_task import expected_output, make_prompt

from mytests.hostile_bodies import MODEL, Body, cases, encoded
from mytests.servers import API_SERVER, server

pytestmark = pytest.mark.model

CANARY = make_prompt(["stone", "apple"], "sync")
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
SEPARATE, TOGETHER = "engine in a process of its own", "all in one process"
LONGEST_ERROR = 12_000
"""In characters. Several errors may each show the beginning of several inputs, but no long input whole."""


@pytest.fixture(scope="module", params=[SEPARATE, TOGETHER])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with hooks, which runs for the whole module and records all that happens."""
    folder = tmp_path_factory.mktemp("chat")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    options = ["--disable-frontend-multiprocessing"] if request.param == TOGETHER else []
    fields = json.dumps(vars(hooks_for("sync", record_to=str(folder / "run.jsonl"))))
    command = [*API_SERVER, MODEL, "--special-kwargs", fields, "--chat-template", str(template), *options]
    with server(*command, use_v1="0") as found:
        yield found


def answer_to(address: str, path: str, body: Body) -> tuple[int, bytes]:
    """The status, and the response's body."""
    request = urllib.request.Request(
        f"{address}{path}", encoded(body), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def canary(address: str) -> Any:
    """The text that another client gets."""
    body = {"model": MODEL, "prompt": CANARY, "max_tokens": 40, "temperature": 0, "skip_special_tokens": False}
    _, answer = answer_to(address, "/v1/completions", body)
    return json.loads(answer)["choices"][0]["text"]


@pytest.mark.parametrize(("path", "body"), [pytest.param(path, body, id=name) for name, path, body in cases()])
def test_an_odd_body_harms_nobody_else(address: str, path: str, body: Body) -> None:
    """Its client gets an answer: a result, or a brief error of the client's own."""
    status, answer = answer_to(address, path, body)
    assert canary(address) == expected_output(CANARY)
    assert 200 <= status < 500, answer[:500]
    assert status == 200 or len(answer) < LONGEST_ERROR
