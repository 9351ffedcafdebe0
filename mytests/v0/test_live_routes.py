# SPDX-License-Identifier: Apache-2.0
"""The page of running trees and its routes, from the server to the engine."""

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from mytests.harness.living import ROOT
from mytests.harness.surgical import SYNC_HOOKS, CharTokenizer, SurgicalEngine
from sequence_hooks.serving.live.trees import LiveRequest, LiveRequests, LiveSequence
from vllm.config import SpecialKwargs
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.engine.llm_engine import LLMEngine
from vllm.engine.multiprocessing.client import MQLLMEngineClient
from vllm.entrypoints.openai import api_server

LIVE = dataclasses.replace(SYNC_HOOKS, live_page=True)
REQUESTS = LiveRequests(2, (LiveRequest("r", 1.0, None, False, {"running": 1}, 0, 2, ROOT.last_tokens),))


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
    assert (request["request_id"], request["num_by_state"]) == ("r", {"running": 1})
    assert [piece["text"] for piece in request["last_texts"]] == ["a!", "B\nC"]


@pytest.mark.parametrize("request_id", ["r", *OF_USERS])
def test_a_tree_is_told_by_its_requests_id(request_id: str) -> None:
    """Which may have any character: in a path it is quoted, and a line break is not where the path ends."""
    (sequence,) = server().get(f"/v1/live_requests/{quote(request_id, safe='')}").json()["sequences"]
    assert (sequence["request_id"], sequence["waits_for"]) == (request_id, "children")


def test_of_others_the_error_names_the_list() -> None:
    """With the status of what is not there."""
    refused = server().get("/v1/live_requests/s")
    assert refused.status_code == 404 and "/v1/live_requests" in refused.text


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
