# SPDX-License-Identifier: Apache-2.0
"""Odd bodies on every route of a real server: none ends it, or harms another client, whose tree follows."""

from collections.abc import Iterator

import pytest
from forkjoin_task import expected_output, make_prompt

from mytests.fuzz.hostile_bodies import Body, cases, encoded
from mytests.harness.served import Server, arguments, fields_for, hook_server
from mytests.harness.serving import FRONT_ENDS, OF_UPSTREAM
from mytests.harness.tiers import every_fourth, names, short

pytestmark = pytest.mark.model

CANARY = make_prompt(["stone", "apple"], "sync")
LONGEST_ERROR = 12_000
"""In characters. Several errors may each show the beginning of several inputs, but no long input whole."""


@pytest.fixture(scope="module", params=names(FRONT_ENDS, short(fork=[], plugin=FRONT_ENDS)))
def hooked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with hooks, which runs for the whole module and records all that happens."""
    with hook_server(tmp_path_factory.mktemp("hostile"), FRONT_ENDS[request.param], fields_for("sync")) as found:
        yield found


@pytest.mark.parametrize(("name", "path", "body"), every_fourth([pytest.param(*case, id=case[0]) for case in cases()]))
def test_an_odd_body_harms_nobody_else(hooked: Server, name: str, path: str, body: Body) -> None:
    """Its client gets an answer: a result, or a brief error of the client's own."""
    answer = hooked.call("POST", path, content=encoded(body), content_type="application/json")
    assert hooked.choice(prompt=CANARY, **arguments()).text == expected_output(CANARY)
    if name not in OF_UPSTREAM:
        assert 200 <= answer.status_code < 500, answer.text[:500]
        assert answer.status_code == 200 or len(answer.content) < LONGEST_ERROR
