# SPDX-License-Identifier: Apache-2.0
"""Clients that spawn as much as they can, or crash upstream; `mytests/fuzz/test_hostile_clients.py` has odd bodies."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import httpx
import pytest
from forkjoin_engine import hooks_for
from forkjoin_task import EOS, expected_output

from mytests.harness.refusals import Post, Refusals
from mytests.harness.served import KEY, MODEL, PROMPT, Server, arguments
from mytests.harness.servers import until
from mytests.harness.serving import ENDS_AT_BODIES

pytestmark = pytest.mark.model

NUM_SAMPLES = 16


@contextmanager
def spawning(served: Server) -> Iterator[Iterator[str]]:
    """The lines of a stream whose samples each have a promise at every token. Its client goes away at the end."""
    promise = hooks_for("promise").promise_token_id
    body = {"model": MODEL, "prompt": "a", "n": NUM_SAMPLES, "max_tokens": 200, "temperature": 1.0, "stream": True}
    body |= {"logit_bias": {str(promise): 100}, "vllm_xargs": {"stream_children": 1}}
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.stream("POST", f"{served.address}/v1/completions", headers=headers, timeout=120, json=body) as response:
        assert response.status_code == 200
        yield response.iter_lines()


def test_an_ordinary_request_is_answered_beside_them(served: Server) -> None:
    """Two of them have begun to spawn before it comes."""
    before = served.metric("children_spawned_total")
    with ExitStack() as stack:
        # A client goes away as soon as nobody has its lines any more.
        streams = [stack.enter_context(spawning(served)) for _ in range(2)]
        for lines in streams:
            next(lines)
        until(lambda: served.metric("children_spawned_total") > before + NUM_SAMPLES)
        assert served.choice(prompt=PROMPT, **arguments()).text.removesuffix(EOS) == expected_output(PROMPT)


@pytest.mark.parametrize("num_lines", [1, 8, 60])
def test_clients_may_go_away_at_any_time(served: Server, num_lines: int) -> None:
    """While their samples, or children of these, are admitted, sample, or wait for each other."""
    for _ in range(3):
        with spawning(served) as lines:
            for _ in range(num_lines):
                next(lines)
    assert served.choice(prompt=PROMPT, **arguments()).text.removesuffix(EOS) == expected_output(PROMPT)


def test_a_budget_ends_one(served: Server) -> None:
    """It ends with `length`, with what there is, and its caller learns which limit it has met."""
    promise = hooks_for("promise").promise_token_id
    limits = {"max_tree_tokens": 20, "max_tree_sequences": 3}
    choice = served.choice(**arguments(vllm_xargs=limits), prompt="a", logit_bias={str(promise): 100})
    assert choice.finish_reason == "length" and "max_tree_tokens" in choice.limits_met


@pytest.mark.skipif(not ENDS_AT_BODIES, reason="test_hostile_clients.py is for both engines")
class TestRefusals(Refusals):
    """Of each front end of V0's, with hooks."""

    @pytest.fixture
    def post(self, served: Server) -> Post:
        """Sends to the server of this folder."""
        call = partial(served.call, "POST", "/v1/completions", content_type="application/json")
        return lambda body: call(content=body)
