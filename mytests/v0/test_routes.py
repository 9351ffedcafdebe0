# SPDX-License-Identifier: Apache-2.0
"""The server's application around upstream's: bad bodies, and the routes and the page of running trees."""

import asyncio
import base64
import dataclasses
import io
import json
import socket
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import quote

import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import ValidationError

from mytests.harness.living import ROOT
from mytests.harness.surgical import SYNC_HOOKS, CharTokenizer, SurgicalEngine
from sequence_hooks.serving.live.trees import LiveRequest, LiveRequests, LiveSequence
from vllm.config import SpecialKwargs
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.engine.llm_engine import LLMEngine
from vllm.engine.multiprocessing.client import MQLLMEngineClient
from vllm.entrypoints.openai import api_server
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.entrypoints.openai.protocol import CompletionRequest
from vllm.entrypoints.openai.serving_chat import OpenAIServingChat
from vllm.entrypoints.openai.serving_completion import OpenAIServingCompletion
from vllm.entrypoints.openai.serving_tokenization import OpenAIServingTokenization
from vllm.utils import FlexibleArgumentParser


@pytest.fixture(scope="module")
def app() -> Any:
    """The application as `vllm serve` creates it, without an engine."""
    made = api_server.upstream.build_app(make_arg_parser(FlexibleArgumentParser()).parse_args([]))
    made.state.openai_serving_tokenization = None
    made.state.engine_client = SimpleNamespace()
    made.state.task = "generate"
    return made


WRONG_TYPE = "a field has a wrong type"


def refusal(app: Any, path: str, body: Any, content_type: str = "application/json") -> str:
    """The message of the error that ``body`` is answered with."""
    content = body if isinstance(body, str) else json.dumps(body)
    response = TestClient(app).post(path, content=content, headers={"Content-Type": content_type})
    assert response.status_code == 400
    assert (response.json()["object"], response.json()["type"]) == ("error", "Bad Request")
    message: str = response.json()["message"]
    return message


def test_all_routes_are_listed(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are logged when the server starts; upstream lists only those that FastAPI does not hide."""
    listed: list[str] = []
    serve = AsyncMock()
    monkeypatch.setattr(api_server.logger, "info", lambda text, *args: listed.append(text % args))
    monkeypatch.setattr(api_server, "_serve_http", serve)
    asyncio.run(api_server.upstream.serve_http(app, port=1))
    for route in ("/v1/completions, Methods: POST", "/v1/resume_sequence, Methods: POST", "/health, Methods: GET"):
        assert f"Route: {route}" in listed
    serve.assert_called_once_with(app, port=1)


@pytest.mark.parametrize("body", [{}, [], "nonsense"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/invocations"])
def test_an_error_names_no_file_of_the_server(app: Any, path: str, body: Any) -> None:
    """FastAPI would append where the route is defined."""
    message = refusal(app, path, body)
    assert "body" in message and ".py" not in message and "line " not in message.replace("line 1", "")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"prompt": "a", "prompt_logprobs": "b"}, WRONG_TYPE),
        ({"prompt": "a", "logprobs": "b"}, WRONG_TYPE),
        ({"messages": [], "tools": [5], "tool_choice": {"function": {"name": "a"}}}, WRONG_TYPE),
        ({"messages": [], "tools": [], "tool_choice": 5}, WRONG_TYPE),
        ({"messages": [], "top_logprobs": {}}, WRONG_TYPE),
        # The engine creates a sequence for each sample before it continues with any request.
        ({"prompt": "a", "n": 10**6}, "n is 1000000; use 16384 at most"),
        ({"prompt": "a", "best_of": 10**6}, "best_of is 1000000; use 16384 at most"),
    ],
)
def test_a_field_that_cannot_be_is_refused(app: Any, fields: dict[str, Any], told: str) -> None:
    """The client gets an error where upstream's own checks raise a TypeError or an AttributeError."""
    assert told in refusal(app, "/v1/chat/completions" if "messages" in fields else "/v1/completions", fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": {"a": "b" * 10**6}},
        {"temperature": "b" * 10**6},
        {"stop": [{"b": 1}] * 10**4},
        {"logit_bias": {"b" * 10**6: "c"}},
        {"logit_bias": {"\ud800": "c"}},
    ],
    ids=["prompt", "temperature", "stop", "key", "surrogate"],
)
def test_an_error_repeats_no_long_input(app: Any, fields: dict[str, Any]) -> None:
    """Neither a long value, nor a long key, nor each of thousands of inputs is repeated."""
    assert len(refusal(app, "/v1/completions", {"prompt": "a", **fields})) < 10_000


def test_what_is_no_json_is_called_so(app: Any) -> None:
    """The client learns that only JSON is allowed; upstream's error, a plain text, is kept. Nothing has no field."""
    assert "Field required" in refusal(app, "/v1/completions", "")
    assert "Only 'application/json' is allowed" in refusal(app, "/v1/completions", "a", "text/plain")


@pytest.mark.parametrize(
    ("message", "told"), [("short", "short"), ("a" * 10**6, "a" * 1000 + "..."), ("\ud800", "\\ud800")]
)
def test_upstreams_own_errors_are_brief(message: str, told: str) -> None:
    """They are shortened, and surrogates are escaped: JSON accepts them, but they cannot be sent as UTF-8."""
    for handler in (OpenAIServingChat, OpenAIServingCompletion, OpenAIServingTokenization):
        serving = handler.__new__(handler)
        assert serving.create_error_response(message).message == told
        assert told[:5] in json.loads(serving.create_streaming_error_response(message))["error"]["message"]


def test_what_is_no_embedding_is_the_clients_error() -> None:
    """It raises a ValueError, whatever torch raises for it; valid ones are loaded by upstream's method."""
    serving, buffer = OpenAIServingCompletion.__new__(OpenAIServingCompletion), io.BytesIO()
    torch.save(torch.ones(2, 3), buffer)
    (loaded,) = serving._load_prompt_embeds([base64.b64encode(buffer.getvalue())])
    assert loaded["prompt_embeds"].shape == (2, 3)
    for embeds in (b"nonsense", [b"AAAA"]):
        with pytest.raises(ValueError, match="prompt_embeds cannot be read"):
            serving._load_prompt_embeds(embeds)


def test_only_a_bodys_errors_are_a_clients(app: Any) -> None:
    """Upstream validates the body of one route itself; other validation errors are the server's fault."""
    assert "prompt" in refusal(app, "/invocations", {"a": 1})
    handle = app.exception_handlers[ValidationError]
    with pytest.raises(ValidationError) as raised:
        CompletionRequest.model_validate({})
    with pytest.raises(ValidationError):
        asyncio.run(handle(SimpleNamespace(scope={}), raised.value))


LIVE = dataclasses.replace(SYNC_HOOKS, live_page=True)
REQUEST = LiveRequest("r", 1.0, None, False, {"running": 1}, 0, 2, ROOT.last_tokens, last_prompt=(104, 105))
REQUESTS = LiveRequests(2, (REQUEST,))


class FakeClient:
    """The client of an engine with these hooks, whose one tree is `ROOT`."""

    def __init__(self, special_kwargs: SpecialKwargs | None) -> None:
        self._special_kwargs = special_kwargs

    async def get_vllm_config(self) -> Any:
        return SimpleNamespace(special_kwargs=self._special_kwargs)

    async def get_tokenizer(self) -> CharTokenizer:
        return CharTokenizer()

    async def resume_sequence(self) -> None:
        """What tells a client whose engine has hooks."""

    async def live_requests(self, limit: int, num_tokens: int) -> LiveRequests:
        return REQUESTS

    async def live_tree(self, request_id: str, num_tokens: int) -> tuple[LiveSequence, ...]:
        return (dataclasses.replace(ROOT, request_id=request_id),) if request_id in ("r", *OF_USERS) else ()


OF_USERS = ["cmpl-a/b?c#d-0", "chatcmpl-a\nb", "chatcmpl-a\n", "\n\0\x85", "chatcmpl-a/"]
"""What a header or a body may name a request."""


def server(special_kwargs: SpecialKwargs | None = LIVE) -> TestClient:
    """Upstream's routes and ours, in front of such a client."""
    app = FastAPI()
    app.include_router(api_server.router)
    app.state.engine_client = FakeClient(special_kwargs)
    return TestClient(app)


def test_requests_are_listed_with_texts() -> None:
    """And with the number of all."""
    told = server().get("/v1/live_requests").json()
    assert told["num_unfinished"] == 2
    (request,) = told["requests"]
    assert (request["request_id"], request["num_by_state"], request["question"]) == ("r", {"running": 1}, "hi")
    texts = [tuple(piece.values()) for piece in request["last_texts"]]
    assert texts == [("sampled", None, False, "a!"), ("merged", "r_child_0", False, "B\nC")]


@pytest.mark.parametrize("request_id", ["r", *OF_USERS])
def test_a_tree_is_told_by_its_requests_id(request_id: str) -> None:
    """Which may have any character: in a path it is quoted, and a line break is not where the path ends."""
    (sequence,) = server().get(f"/v1/live_requests/{quote(request_id, safe='')}").json()["sequences"]
    assert (sequence["request_id"], sequence["waits_for"]) == (request_id, "children")


def test_of_others_the_error_names_the_list() -> None:
    """With the status of what is not there."""
    refused = server().get("/v1/live_requests/s")
    assert refused.status_code == 404 and "/v1/live_requests" in refused.text


def test_a_port_in_use_is_one_line() -> None:
    """Without upstream's traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit, match="in use; give another"):
        api_server.create_server_socket(taken.getsockname())


def test_the_page_is_html() -> None:
    """For whoever asks: it has no data in it."""
    answer = server().get("/live")
    assert answer.headers["content-type"].startswith("text/html") and "Running trees" in answer.text


@pytest.mark.parametrize("path", ["/live", "/v1/live_requests", "/v1/live_requests/r"])
@pytest.mark.parametrize("special_kwargs", [None, SpecialKwargs(sync_token_id=3)])
def test_without_the_field_there_is_none(path: str, special_kwargs: SpecialKwargs | None) -> None:
    """The error names the field and the way out."""
    answer = server(special_kwargs).get(path)
    assert answer.status_code == 404 and "live_page" in answer.text and "true" in answer.text


@pytest.mark.parametrize("query", ["limit=-1", "limit=1001", "num_tokens=200001", "num_tokens=many"])
def test_bounds_are_checked(query: str) -> None:
    """A page asks for a part of what there is."""
    assert server().get(f"/v1/live_requests?{query}").status_code == 422


def test_each_engine_passes_calls_on() -> None:
    """Within a process, or to another one."""
    surgical = SurgicalEngine(LIVE)
    surgical.add()
    engine, asynchronous = LLMEngine.__new__(LLMEngine), AsyncLLMEngine.__new__(AsyncLLMEngine)
    engine.scheduler, asynchronous.engine = [surgical.scheduler], engine
    remote = MQLLMEngineClient.__new__(MQLLMEngineClient)

    async def call(method: str, *arguments: Any) -> Any:
        return getattr(engine, method)(*arguments)

    remote._call = call  # type: ignore[method-assign]
    for each in (asynchronous, remote):
        assert asyncio.run(each.live_requests(10, 10)) == engine.live_requests(10, 10)
        assert asyncio.run(each.live_tree("r", 10)) == engine.live_tree("r", 10) != ()
    surgical.run({})
    surgical.assert_empty()
