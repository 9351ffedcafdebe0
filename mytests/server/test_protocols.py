# SPDX-License-Identifier: Apache-2.0
"""Each published notation by its name alone, as OpenAI's client gets it from a server."""

from collections.abc import Iterator
from typing import Any

import pytest

from mytests.harness.published import PLAYS, Play, save_model
from mytests.harness.served import Server, hook_server
from mytests.harness.serving import FRONT_ENDS
from mytests.harness.tiers import names
from sequence_hooks.config.notations import protocols

pytestmark = pytest.mark.model


SHOWN = [each for each in protocols() if each != "skeleton"]
"""`mytests/server/test_skeleton.py` has the one that only requests which ask for it have, and shows in `make test` that
a protocol reaches a server; `mytests/rules/test_protocols.py` has them all, with what is malformed or cut."""


@pytest.fixture(scope="module", params=names(SHOWN, []))
def play(request: pytest.FixtureRequest) -> Play:
    """Each of them."""
    return PLAYS[request.param]


@pytest.fixture(scope="module")
def served(play: Play, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model that has the notation's tags."""
    folder = tmp_path_factory.mktemp("published")
    model = save_model(play.notation, folder / "model")
    with hook_server(folder, [*FRONT_ENDS.values()][-1], play.fields(), model, max_model_len=1024) as found:
        yield found


def test_a_request_forks_and_joins(served: Server, play: Play) -> None:
    """Its text has what its children have done, where the notation has it."""
    choice = served.choice(model=served.model, **play.request(play.sampled))
    assert (choice.text, choice.finish_reason) == (play.output, "stop")
    assert [child["finish_reason"] for child in choice.children] == ["stop", "stop"]


def test_a_stream_tells_the_same(served: Server, play: Play) -> None:
    """In the order of sampling; where children are detached, its last chunk tells the other one too."""
    stream = served.client.completions.create(model=served.model, stream=True, **play.request(play.sampled))
    chunks: list[Any] = list(stream)
    streamed = "".join(chunk.choices[0].text for chunk in chunks)
    assembled = getattr(chunks[-1].choices[0], "assembled", None)
    told = (streamed, None) if assembled is None else (streamed, assembled["text"])
    is_detached = play.notation.name in ("hpd", "padoc")
    assert told == ((play.sampled, play.output) if is_detached else (play.output, None))
