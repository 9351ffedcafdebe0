# SPDX-License-Identifier: Apache-2.0
"""``resume_sequence`` from the server to the engine: its routes, calls between two processes, and texts in a thread."""

import asyncio
import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from mytests.harness.surgical import CharTokenizer
from sequence_hooks.results import Waiting
from sequence_hooks.tree import resume
from sequence_hooks.tree.resume import ResumeRoom
from vllm.engine.multiprocessing import MQEngineDeadError, RPCError, RPCLoadAdapterRequest
from vllm.engine.multiprocessing import engine as engine_module
from vllm.engine.multiprocessing.client import MQLLMEngineClient
from vllm.engine.multiprocessing.engine import MQLLMEngine, run_mp_engine
from vllm.engine.multiprocessing.hook_calls import RPCHookCall, RPCHookResult
from vllm.entrypoints.openai import api_server
from vllm.lora.request import LoRARequest

NO_SUCH = "resume_sequence: request_id is 'nobody', and no such sequence waits to be resumed"


ADAPTER = LoRARequest("adapter", 1, "nowhere")
ROOM = 200
WAITING = Waiting("r", None, 0, 2, "a", ("r_child_0",), 1, 1234.5)


class FakeEngine:
    """An engine in which one sequence waits, "r", with an adapter."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.is_waiting = True
        self.vllm_config = SimpleNamespace(special_kwargs="some")

    def room_to_resume(self, request_id: str) -> ResumeRoom:
        if request_id != "r":
            raise ValueError(NO_SUCH)
        return ResumeRoom(ROOM, ADAPTER)

    def resume_sequence(self, request_id: str, text_or_token_ids: Any = None) -> None:
        if request_id != "r":
            raise ValueError(NO_SUCH)
        self.calls.append((request_id, text_or_token_ids))

    def sequences_awaiting_resume(self) -> list[Waiting]:
        return [WAITING]

    def is_waiting_for_callers(self) -> bool:
        return self.is_waiting

    def step(self) -> list[Any]:
        return []

    def add_lora(self, lora_request: Any) -> None:
        self.calls.append(("add_lora", lora_request))


class FakeClient:
    """A `FakeEngine` behind the client that a server has."""

    get_model_config = AsyncMock(return_value=SimpleNamespace(max_model_len=ROOM))
    get_tokenizer = AsyncMock(return_value=CharTokenizer())

    def __init__(self) -> None:
        self.engine = FakeEngine()

    async def resume_sequence(self, *args: Any) -> None:
        self.engine.resume_sequence(*args)

    async def sequences_awaiting_resume(self) -> list[Waiting]:
        return self.engine.sequences_awaiting_resume()


def server(client: Any) -> TestClient:
    """Upstream's routes and ours, in front of ``client``."""
    app = FastAPI()
    app.include_router(api_server.router)
    app.state.engine_client = client
    return TestClient(app)


NO_IDS: list[Any] = [[True], [2.0], ["2"], {}]


def post(content: Any, content_type: str = "application/json") -> tuple[int, str]:
    """The status and the text of the answer to a body."""
    response = server(FakeClient()).post("/v1/resume_sequence", content=content, headers={"Content-Type": content_type})
    return response.status_code, response.text


class TestRoutes:
    def test_who_waits(self) -> None:
        """Each with all that a caller needs to know of it."""
        (listed,) = server(FakeClient()).get("/v1/sequences_awaiting_resume").json()["sequences"]
        assert listed == json.loads(json.dumps(asdict(WAITING)))

    @pytest.mark.parametrize(("field", "given"), [("text", "tool"), ("token_ids", [7]), ("text", None)])
    def test_it_goes_on_with_what_it_is_given(self, field: str, given: Any) -> None:
        """The body has a text, token ids, or nothing."""
        client = FakeClient()
        response = server(client).post("/v1/resume_sequence", json={"request_id": "r", field: given})
        assert (response.status_code, client.engine.calls) == (200, [("r", given)])

    @pytest.mark.parametrize(
        ("body", "status", "message"),
        [
            ({"request_id": "nobody"}, 400, NO_SUCH),
            ({"request_id": "r", "text": "a", "token_ids": [1]}, 400, "text and token_ids are both set"),
            *(({"request_id": "r", "token_ids": ids}, 422, "token_ids") for ids in NO_IDS),
            ({"request_id": 5}, 422, "request_id"),
            ({"request_id": "r", "text": "a" * 10_000}, 413, "no sequence of this model has room for more than 6496"),
            ([], 422, "body"),
        ],
    )
    def test_what_cannot_be_is_refused(self, body: dict[str, Any], status: int, message: str) -> None:
        """The error names the field and the way out."""
        found, text = post(json.dumps(body))
        assert found == status and message in text

    @pytest.mark.parametrize(
        ("body", "is_of_ids"),
        [
            *(("", False), ("nonsense", False), ("[" * 3000, False), (b"\xff", False)),
            # Python's own parser would refuse this body as a whole.
            (f'{{"request_id": "r", "token_ids": [{"1" * 5000}]}}', True),
        ],
        ids=["nothing", "nonsense", "depth", "no UTF-8", "an id of many digits"],
    )
    def test_what_is_no_json_is_refused(self, body: str | bytes, is_of_ids: bool) -> None:
        """Also as another type, as on upstream's routes."""
        status, text = post(body)
        assert (status, "token_ids" in text) == (422, is_of_ids)
        status, text = post("request_id=r", "application/x-www-form-urlencoded")
        assert status == 422 and "application/json" in text

    @pytest.mark.parametrize(("method", "path"), [("GET", "sequences_awaiting_resume"), ("POST", "resume_sequence")])
    def test_an_engine_without_hooks_says_so(self, method: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """V1's client has no such method; an engine that could have hooks, and has none, raises an error."""
        refuse = AsyncMock(side_effect=ValueError("no hooks"))
        monkeypatch.setattr(FakeClient, path, refuse)
        for client, told in ((SimpleNamespace(), "V1"), (FakeClient(), "no hooks")):
            response = server(client).request(method, f"/v1/{path}", json={"request_id": "r"})
            assert response.status_code == 400 and told in response.text


def in_engine_process(call: Any) -> tuple[FakeEngine, list[Any]]:
    """The engine after ``call`` has come through the socket, and its answers."""
    process = MQLLMEngine.__new__(MQLLMEngine)
    answers: list[Any] = []
    process.engine = FakeEngine()
    process._send_outputs = answers.append
    process._handle_load_adapter_request(pickle.loads(pickle.dumps(call)))
    return process.engine, answers


class TestEngineProcess:
    def test_a_call_is_answered_with_its_value(self) -> None:
        """The answer has the id of the call; requests to load an adapter, which come the same way, are upstream's."""
        call = RPCHookCall(method="sequences_awaiting_resume")
        assert in_engine_process(call)[1] == [RPCHookResult(call.request_id, [WAITING])]
        engine, _ = in_engine_process(RPCLoadAdapterRequest("adapter"))
        assert engine.calls == [("add_lora", "adapter")]

    @pytest.mark.parametrize(("arguments", "told"), [(("nobody",), NO_SUCH), ((), "missing 1 required")])
    def test_an_error_goes_back_and_the_engine_goes_on(self, arguments: tuple[str, ...], told: str) -> None:
        """The error concerns only the caller, whatever a call raises."""
        (answer,) = in_engine_process(RPCHookCall(method="resume_sequence", arguments=arguments))[1]
        assert isinstance(answer, RPCError) and not answer.is_engine_errored
        assert told in str(answer.exception)

    @pytest.mark.parametrize("is_waiting", [True, False])
    def test_it_does_not_spin_while_all_wait(self, is_waiting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only a caller can make anything happen, so each step sleeps."""
        slept: list[float] = []
        monkeypatch.setattr(engine_module.time, "sleep", slept.append)
        process = MQLLMEngine.__new__(MQLLMEngine)
        process.engine = FakeEngine()
        process.engine.is_waiting = is_waiting
        assert process.engine_step() == [] and slept == [0.001] * is_waiting

    def test_a_new_process_gets_our_engine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Upstream's function looks the class up in its own module."""
        made: list[Any] = []
        monkeypatch.setattr(MQLLMEngine, "from_vllm_config", lambda **_: SimpleNamespace(start=lambda: made.append(1)))
        monkeypatch.setattr(engine_module.upstream.signal, "signal", lambda *_: None)
        run_mp_engine(None, None, "", False, False, None)
        assert made == [1]


class FakeSocket:
    """Hands each call to an engine process, whose answer arrives in the client's own queue."""

    def __init__(self, client: MQLLMEngineClient) -> None:
        self._client = client

    async def send_multipart(self, frames: tuple[bytes, ...], copy: bool) -> None:
        _, (answer,) = in_engine_process(pickle.loads(frames[0]))
        queue = self._client.output_queues[answer.request_id]
        queue.put_nowait(answer.exception if isinstance(answer, RPCError) else answer)


async def tokenizer_of(lora_request: LoRARequest | None) -> Any:
    """That of the sequence's adapter."""
    assert lora_request in (ADAPTER, None)
    return CharTokenizer()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[MQLLMEngineClient]:
    """A server's client of an engine process, which keeps no queue after a call."""
    client = MQLLMEngineClient.__new__(MQLLMEngineClient)
    client.output_queues, client._errored_with = {}, None
    client.input_socket = FakeSocket(client)
    client.tokenizer = SimpleNamespace(get_lora_tokenizer_async=tokenizer_of)
    # A process forked from one that has encoded a text, as mutmut's are, has none of its threads.
    with ThreadPoolExecutor(1) as encoder:
        monkeypatch.setattr(resume, "_encoder", encoder)
        yield client
    assert client.output_queues == {}


class TestFrontEnd:
    def test_it_gets_what_the_engine_returns(self, client: MQLLMEngineClient) -> None:
        """Or raises what the engine raises."""
        assert asyncio.run(client.sequences_awaiting_resume()) == [WAITING]
        with pytest.raises(ValueError, match="nobody"):
            asyncio.run(client.resume_sequence("nobody"))

    def test_an_engine_that_has_ended_is_not_waited_for(self, client: MQLLMEngineClient) -> None:
        """No answer would come."""
        client._errored_with = RuntimeError("gone")
        with pytest.raises(MQEngineDeadError):
            asyncio.run(client.sequences_awaiting_resume())

    @pytest.mark.parametrize(("given", "ids"), [("ab", (97, 98)), ([7], (7,)), (None, ())])
    def test_it_encodes_what_it_is_given(
        self, given: Any, ids: tuple[int, ...], client: MQLLMEngineClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It uses the tokenizer of the sequence's adapter, and the engine gets ids."""
        resumed: list[Any] = []
        monkeypatch.setattr(FakeEngine, "resume_sequence", lambda _, *args: resumed.append(args))
        asyncio.run(client.resume_sequence("r", given))
        assert resumed == [("r", ids)]
