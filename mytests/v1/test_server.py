# SPDX-License-Identifier: Apache-2.0
"""``vllm serve`` of a stock vLLM with the plug-in, started with nothing but options, and used by OpenAI's client."""

import http.client
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from forkjoin_engine import MODEL_FOLDER, hooks_for
from forkjoin_task import EOS, PROMISE, SYNC, expected_output, held_out_prompts
from openai import BadRequestError, OpenAI

from mytests.servers import CLI, server, until
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.reader import read

pytestmark = pytest.mark.model

MODEL = str(MODEL_FOLDER)
PROMPT = held_out_prompts(1, 8, "promise")[0]
NUM_CHILDREN = PROMPT.count(" ") // 2
MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
KEY = "a secret"


@dataclass(frozen=True)
class Server:
    """A server with hooks that runs."""

    address: str
    log: Path
    recording: Path

    @property
    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.address}/v1", api_key=KEY, max_retries=0, timeout=120)

    def choice(self, **fields: Any) -> Any:
        """The only choice of a completion."""
        (choice,) = self.client.completions.create(**fields).choices
        return choice

    def call(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """What it answers to one request that has the key."""
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx.request(method, f"{self.address}{path}", headers=headers, timeout=120, **arguments)

    def waiting(self) -> list[str]:
        """The request ids of the sequences that wait for their callers."""
        ids: list[str] = self.call("GET", "/v1/sequences_awaiting_resume").json()["request_ids"]
        return ids

    def metric(self, name: str, **labels: str) -> float:
        """The value of one of vLLM's metrics, 0 before it is first set."""
        text = self.call("GET", "/metrics").text
        lines = [line for line in text.splitlines() if re.match(rf"vllm:{name}[{{ ]", line)]
        lines = [line for line in lines if all(f'{key}="{value}"' in line for key, value in labels.items())]
        return sum(float(line.split()[-1]) for line in lines)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the tiny model. Promises join at once; only a sync token waits for a caller."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "template.jinja").write_text(TEMPLATE)
    log, recording = folder / "log", folder / "run.jsonl"
    hooks = vars(hooks_for("promise", sync_resume="manual", record_to=str(recording)))
    fields = json.dumps({name: value for name, value in hooks.items() if value not in (None, ())})
    command = [*CLI, "serve", MODEL, "--special-kwargs", fields, "--api-key", KEY]
    command += ["--chat-template", str(folder / "template.jinja")]
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "INFO", "VLLM_LOG_STATS_INTERVAL": "1"}
    with server(*command, use_v1="1", log=log, **environment) as address:
        yield Server(address, log, recording)


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test no request runs or waits, and no KV is in use."""
    yield
    served = request.getfixturevalue("served")
    assert served.waiting() == []
    for name in ("num_requests_running", "num_requests_blocked", "kv_cache_usage_perc"):
        until(lambda: served.metric(name) == 0)  # noqa: B023


def arguments(**extra: Any) -> dict[str, Any]:
    """The arguments of a greedy request whose text includes the hook tokens."""
    body = {"skip_special_tokens": False, **extra}
    return {"model": MODEL, "temperature": 0, "max_tokens": 40, "extra_body": body}


def waits_for_its_caller() -> dict[str, Any]:
    """The arguments of a request that waits after its first token, and samples one more when it is resumed."""
    sync = hooks_for("promise").sync_token_id
    return {**arguments(allowed_token_ids=[sync]), "prompt": "a", "max_tokens": 2}


def check_tree(choice: Any) -> None:
    """The choice has all children, and its segments cover the output without a gap."""
    assert [child["failed"] for child in choice.children] == [False] * NUM_CHILDREN
    ends = [segment["end"] for segment in choice.segments]
    assert [segment["start"] for segment in choice.segments] == [0, *ends[:-1]]
    assert {segment["child"] for segment in choice.segments} >= {child["request_id"] for child in choice.children}


def sampled_by(branch: Any) -> int:
    """The number of tokens that a choice or child, and all below it, have sampled."""
    segments, children = (getattr(branch, name, None) or branch[name] for name in ("segments", "children"))
    own = sum(segment["end"] - segment["start"] for segment in segments if segment["origin"] == "sampled")
    return int(own + sum(map(sampled_by, children)))


def check_usage(usage: Any, choices: list[Any]) -> None:
    """Each token of the choices has an origin, and all that was sampled is counted."""
    details = usage.completion_tokens_details
    by_origin = {
        origin: sum(s["end"] - s["start"] for choice in choices for s in choice.segments if s["origin"] == origin)
        for origin in ("sampled", "merged", "inserted")
    }
    assert sum(by_origin.values()) == usage.completion_tokens
    assert (details.merged_tokens, details.inserted_tokens) == (by_origin["merged"], by_origin["inserted"])
    assert details.sampled_tokens == sum(map(sampled_by, choices)) > by_origin["sampled"] + by_origin["merged"]


class TestCompletions:
    def test_the_choice_has_its_tree(self, served: Server) -> None:
        """The tree comes with the joined text, and the usage counts it."""
        response = served.client.completions.create(prompt=PROMPT, **arguments())
        assert [choice.text for choice in response.choices] == [expected_output(PROMPT)]
        check_tree(response.choices[0])
        check_usage(response.usage, response.choices)

    def test_each_sample_has_its_own(self, served: Server) -> None:
        """Two prompts with n = 2 have four trees."""
        sampled = arguments() | {"temperature": 0.01}
        response = served.client.completions.create(prompt=[PROMPT, PROMPT], n=2, **sampled)
        assert [choice.index for choice in response.choices] == [0, 1, 2, 3]
        for choice in response.choices:
            check_tree(choice)
        children = {child["request_id"] for choice in response.choices for child in choice.children}
        assert len(children) == 4 * NUM_CHILDREN
        check_usage(response.usage, response.choices)

    def test_children_stream_for_who_asks(self, served: Server) -> None:
        """Their text comes as chunks without choices, and the parent's with the tree."""
        stream = served.client.completions.create(prompt=PROMPT, stream=True, **arguments(stream_children=True))
        chunks: list[Any] = list(stream)
        told = [chunk.child for chunk in chunks if not chunk.choices]
        for child in chunks[-1].choices[0].children:
            texts = [delta["text"] for delta in told if delta["request_id"] == child["request_id"]]
            assert "".join(texts) == child["text"] and len(texts) > 1
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected_output(PROMPT)
        check_tree(chunks[-1].choices[0])

    def test_the_usage_of_a_stream_is_of_all_choices(self, served: Server) -> None:
        """It comes with the last chunk."""
        sampled: Any = arguments() | {"temperature": 0.01, "stream": True, "stream_options": {"include_usage": True}}
        *chunks, last = served.client.completions.create(prompt=[PROMPT, PROMPT], n=2, **sampled)
        choices = [choice for chunk in chunks for choice in chunk.choices if hasattr(choice, "segments")]
        assert len(choices) == 4
        check_usage(last.usage, choices)

    def test_continuous_usage_grows_to_the_whole(self, served: Server) -> None:
        """It has details as soon as a hook has fired."""
        options: Any = {"include_usage": True, "continuous_usage_stats": True}
        stream = served.client.completions.create(prompt=PROMPT, stream=True, stream_options=options, **arguments())
        chunks: list[Any] = list(stream)
        told = [chunk.usage.completion_tokens_details for chunk in chunks]
        counts = [details.sampled_tokens for details in told if details is not None]
        assert told[0] is None and counts == sorted(counts) and len(counts) > 2
        check_usage(chunks[-1].usage, chunks[-2].choices)

    def test_a_request_may_switch_its_hooks_off(self, served: Server) -> None:
        """Its choices and its usage are then upstream's."""
        response = served.client.completions.create(prompt=PROMPT, **arguments(vllm_xargs={"hooks": 0}))
        assert not hasattr(response.choices[0], "segments") and PROMISE in response.choices[0].text
        assert response.usage is not None and response.usage.completion_tokens_details is None

    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            ({"vllm_xargs": {"max_children": 1000}}, "max_children is 1000; the engine allows at most 16"),
            ({"vllm_xargs": {"max_childs": 1}}, "'max_childs' is not a field, but similar to 'max_children'"),
            ({"stream_children": "maybe"}, "stream_children is 'maybe'; use True or False"),
        ],
    )
    def test_a_bad_limit_is_the_clients_error(self, served: Server, extra: dict[str, Any], message: str) -> None:
        """The error names the field, its value and the way out."""
        with pytest.raises(BadRequestError, match=message):
            served.client.completions.create(prompt=PROMPT, **arguments(**extra))


class TestChat:
    @pytest.mark.parametrize("n", [1, 2])
    def test_each_choice_has_its_tree(self, served: Server, n: int) -> None:
        """The tree comes with the message, and the usage counts all."""
        response = served.client.chat.completions.create(messages=MESSAGES, n=n, **arguments() | {"temperature": 0.01})
        assert [choice.message.content for choice in response.choices] == [expected_output(PROMPT)] * n
        for choice in response.choices:
            check_tree(choice)
        check_usage(response.usage, response.choices)

    def test_a_stream_ends_with_the_trees(self, served: Server) -> None:
        """Each choice has its own; children come as chunks without choices, and the last chunk has the usage."""
        streamed: Any = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0.01}
        stream = served.client.chat.completions.create(
            messages=MESSAGES, n=2, **arguments(stream_children=True) | streamed
        )
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


class TestResume:
    @pytest.mark.parametrize(("given", "text"), [({"text": " stone"}, " stone"), ({"token_ids": [7]}, None), ({}, "")])
    def test_a_sequence_goes_on_with_what_its_caller_gives(self, served: Server, given: Any, text: str | None) -> None:
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

    @pytest.mark.parametrize(
        ("given", "status", "told"),
        [
            ({"text": "fork 1 " * 1_500_000}, 413, "and no sequence of this model has room for"),
            ({"text": "a" * 3000}, 400, "3000 characters, and the sequence has room for"),
            ({"text": "1 " * 300}, 400, "tokens, and the sequence has room for"),
            ({"token_ids": [7] * 300}, 400, "300 tokens, and the sequence has room for"),
            ({"token_ids": [10**6]}, 400, "not in the model's vocabulary"),
            ({"token_ids": [True]}, 400, "token_ids"),
            ({"text": "a", "token_ids": [7]}, 400, "text and token_ids are both set"),
            ({"texts": "a"}, 400, "unknown field `texts`"),
            ({"request_id": "nobody"}, 400, "no such sequence waits to be resumed"),
        ],
        ids=[
            "a long body",
            "characters",
            "tokens of a text",
            "tokens",
            "vocabulary",
            "type",
            "both",
            "field",
            "nobody",
        ],
    )
    def test_what_does_not_fit_is_refused(self, served: Server, given: Any, status: int, told: str) -> None:
        """As on V0: the sequence keeps waiting, and goes on with what does fit."""
        with ThreadPoolExecutor(1) as clients:
            answer = clients.submit(lambda: served.choice(**waits_for_its_caller()))
            (request_id,) = until(served.waiting)
            response = served.call("POST", "/v1/resume_sequence", json={"request_id": request_id, **given})
            message = response.json()["error"]["message"]
            assert response.status_code == status and told in message and len(message) < 1000
            assert served.waiting() == [request_id]
            served.call("POST", "/v1/resume_sequence", json={"request_id": request_id})
            assert answer.result().text == f"{SYNC}{SYNC}"

    @pytest.mark.parametrize("is_streamed", [True, False])
    def test_a_client_that_goes_away_aborts_its_tree(self, served: Server, is_streamed: bool) -> None:
        """It would wait forever."""
        body = waits_for_its_caller()
        body |= {**body.pop("extra_body"), "stream": is_streamed}
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        client = http.client.HTTPConnection(served.address.removeprefix("http://"))
        client.request("POST", "/v1/completions", json.dumps(body), headers)
        until(served.waiting)
        client.close()
        until(lambda: not served.waiting())

    @pytest.mark.parametrize(("method", "path"), [("GET", "sequences_awaiting_resume"), ("POST", "resume_sequence")])
    def test_the_key_is_needed(self, served: Server, method: str, path: str) -> None:
        """As for all routes below ``/v1``."""
        assert httpx.request(method, f"{served.address}/v1/{path}", json={"request_id": "r"}).status_code == 401

    def test_the_routes_are_documented(self, served: Server) -> None:
        """In the server's own description, with the fields of the body."""
        paths = served.call("GET", "/openapi.json").json()["paths"]
        body = paths["/v1/resume_sequence"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert set(body["properties"]) == {"request_id", "text", "token_ids"}
        assert "/v1/sequences_awaiting_resume" in paths


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
    """At upstream's interval, under upstream's labels."""
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(lambda: served.choice(**waits_for_its_caller()))
        (request_id,) = until(served.waiting)
        until(lambda: served.metric("num_requests_blocked", model_name=MODEL, engine="0") == 1)
        assert served.metric("blocked_cache_usage_perc") > 0
        until(lambda: "Engine 000: Blocked: 1 reqs, KV cache usage of the blocked: " in served.log.read_text())
        served.call("POST", "/v1/resume_sequence", json={"request_id": request_id})
        assert answer.result().finish_reason == "length"
    until(lambda: served.metric("num_requests_blocked") == served.metric("blocked_cache_usage_perc") == 0)


def test_the_run_is_recorded(served: Server) -> None:
    """While it goes on: a lane for each sequence, with its text."""
    served.client.completions.create(prompt=PROMPT, **arguments())
    picture = picture_of(read(served.recording))
    parents = {lane.parent.request_id for lane in picture.lanes if lane.parent is not None}
    assert parents and parents <= {lane.request_id for lane in picture.lanes}
    assert expected_output(PROMPT) in {lane.text.removesuffix(EOS) for lane in picture.lanes}
