# SPDX-License-Identifier: Apache-2.0
"""What operators and trainers get of a server with hooks, and clients that spawn as much as they can."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import httpx
import pytest
import torch
from forkjoin_engine import MODEL_FOLDER, hooks_for
from forkjoin_task import EOS, expected_output

from mytests.harness.installed import IS_V1
from mytests.harness.refusals import Post, Refusals
from mytests.harness.served import KEY, MESSAGES, MODEL, NUM_CHILDREN, PROMPT, Server, arguments, waits_for_its_caller
from mytests.harness.servers import until
from mytests.harness.serving import ENDS_AT_BODIES, ENGINE_LABEL, IDLE_METRICS
from mytests.harness.training_engines import plain_model
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.reader import read
from sequence_hooks.training import plain_rows, token_trees

pytestmark = pytest.mark.model


def test_no_warning_is_about_routes(served: Server) -> None:
    """Upstream warns of plug-ins for routes that ``VLLM_PLUGINS`` does not name; this one needs no such list."""
    assert "VLLM_PLUGINS is not set" not in served.log.read_text()


def test_metrics_count_requests_and_hooks(served: Server) -> None:
    """A request is one however many children it has, and all that was sampled are its generated tokens."""
    names = (
        "request_success_total",
        "generation_tokens_total",
        "children_spawned_total",
        "request_queue_time_seconds_count",
    )
    before = [served.metric(name) for name in names]
    usage = served.client.completions.create(prompt=PROMPT, **arguments()).usage
    assert usage is not None and usage.completion_tokens_details is not None
    sampled = getattr(usage.completion_tokens_details, "sampled_tokens")  # noqa: B009
    grown = [1, sampled, NUM_CHILDREN, 1]
    until(lambda: [served.metric(name) for name in names] == [a + b for a, b in zip(before, grown, strict=True)])


def test_who_is_blocked_is_shown_and_logged(served: Server) -> None:
    """At upstream's interval, under upstream's labels. V0 tells that nobody is, when it runs again. Of several servers
    none logs it, as none knows all who are."""
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(lambda: served.choice(**waits_for_its_caller()))
        (request_id,) = until(served.waiting)
        until(lambda: served.metric("num_requests_blocked", model_name=MODEL, **ENGINE_LABEL) == 1)
        until(lambda: served.metric("blocked_cache_usage_perc") > 0)
        line = "Blocked: 1 reqs, KV cache usage of the blocked: "
        until(lambda: served.has_peers or line in served.log.read_text())
        served.call("POST", "/v1/resume_sequence", json={"request_id": request_id})
        assert answer.result().finish_reason == "length"
    for name in IDLE_METRICS:
        until(lambda: served.is_zero(name))  # noqa: B023


def test_the_run_is_recorded(served: Server) -> None:
    """While it goes on: a lane for each sequence, with its text."""
    served.client.completions.create(prompt=PROMPT, **arguments())
    picture = picture_of(read(served.recording))
    parents = {lane.parent.request_id for lane in picture.lanes if lane.parent is not None}
    assert parents and parents <= {lane.request_id for lane in picture.lanes}
    assert expected_output(PROMPT) in {lane.text.removesuffix(EOS) for lane in picture.lanes}


def test_a_childs_span_is_under_its_requests(served: Server) -> None:
    """They are exported when the request has ended."""
    response = served.client.completions.create(prompt=PROMPT, **arguments())
    (choice,) = response.choices
    (root,) = until(lambda: served.spans.of(f"{response.id}-0"))
    for child in getattr(choice, "children"):  # noqa: B009
        (span,) = until(lambda: served.spans.of(child["request_id"]))  # noqa: B023
        assert span.parent_span_id == root.span_id and span.trace_id == root.trace_id


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


TOLERANCE = 1e-3
SAMPLED = {"temperature": 1.0, "seed": 3, "max_tokens": 40}


def completion(server: Server) -> Any:
    extra = arguments(return_token_ids=True) | SAMPLED
    return server.client.completions.create(prompt=PROMPT, logprobs=0, **extra)


def chat(server: Server) -> Any:
    extra = arguments(return_token_ids=True) | SAMPLED
    return server.client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=0, **extra)


def generated(server: Server) -> Any:
    """What a trainer's own client gets, which sends tokens."""
    prompt = server.call("POST", "/tokenize", json={"model": MODEL, "prompt": PROMPT}).json()["tokens"]
    body = {"token_ids": prompt, "sampling_params": {**SAMPLED, "logprobs": 0}, "return_token_ids": True}
    return server.call("POST", "/inference/v1/generate", json={"model": MODEL, **body}).json()


@pytest.mark.floats
@pytest.mark.skipif(not IS_V1, reason="the fork's server, of 0.9.2, returns no token ids")
@pytest.mark.parametrize("ask", [completion, chat, generated])
def test_a_response_has_the_engines_tree(served: Server, ask: Callable[[Server], Any]) -> None:
    """Each sampled token of each sequence, by a plain model on plain rows."""
    (tree,) = token_trees(ask(served))
    assert len(tree.children) == NUM_CHILDREN
    for row in plain_rows(tree):
        with torch.inference_mode():
            logprobs = plain_model(MODEL_FOLDER)(torch.tensor([row.token_ids])).logits[0, :-1].log_softmax(-1)
        ours = logprobs.gather(-1, torch.tensor(row.token_ids)[1:, None])[:, 0]
        mask = torch.tensor(row.loss_mask[1:])
        torch.testing.assert_close(ours[mask], torch.tensor(row.logprobs[1:])[mask], rtol=0, atol=TOLERANCE)
