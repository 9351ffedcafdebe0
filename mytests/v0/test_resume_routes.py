# SPDX-License-Identifier: Apache-2.0
"""``resume_sequence`` from the server to the engine: its routes, and the calls between two processes."""

import asyncio
import json
import pickle
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from mytests.harness.surgical import CharTokenizer
from sequence_hooks.results import Waiting
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

    def __init__(self) -> None:
        self.engine = FakeEngine()

    async def get_model_config(self) -> Any:
        return SimpleNamespace(max_model_len=ROOM)

    async def get_tokenizer(self) -> CharTokenizer:
        return CharTokenizer()

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
            ({"request_id": "r", "texts": "a"}, 422, "texts"),
            ({"request_id": "r", "token_ids": [True]}, 422, "token_ids"),
            ({"request_id": "r", "token_ids": [2.0]}, 422, "token_ids"),
            ({"request_id": "r", "token_ids": ["2"]}, 422, "token_ids"),
            ({"request_id": "r", "token_ids": {}}, 422, "token_ids"),
            ({"request_id": 5}, 422, "request_id"),
            (
                {"request_id": "r", "text": "a" * 10_000},
                413,
                "no sequence of this model has room for more than 6496",
            ),
            ([], 422, "body"),
        ],
    )
    def test_what_cannot_be_is_refused(self, body: dict[str, Any], status: int, message: str) -> None:
        """The error names the field and the way out."""
        response = server(FakeClient()).post("/v1/resume_sequence", json=body)
        assert response.status_code == status and message in response.text

    def test_an_id_of_many_digits_is_refused_by_its_field(self) -> None:
        """Python's own parser would refuse the body as a whole."""
        assert self.post_raw(f'{{"request_id": "r", "token_ids": [{"1" * 5000}]}}') == (422, True)

    @pytest.mark.parametrize("body", ["", "nonsense", "[" * 3000, b"\xff"])
    def test_what_is_no_json_is_refused(self, body: str | bytes) -> None:
        """It is refused however deeply it is nested."""
        assert self.post_raw(body) == (422, False)

    def post_raw(self, body: str | bytes) -> tuple[int, bool]:
        """The status, and whether the error is about ``token_ids``."""
        headers = {"Content-Type": "application/json"}
        response = server(FakeClient()).post("/v1/resume_sequence", content=body, headers=headers)
        return response.status_code, "token_ids" in response.text

    def test_a_body_is_json(self) -> None:
        """Anything else is refused, as on upstream's routes."""
        response = server(FakeClient()).post("/v1/resume_sequence", data={"request_id": "r"})
        assert response.status_code == 422 and "application/json" in response.text

    def test_a_list_that_cannot_be_had_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An engine that could have hooks, and has none, says so."""

        async def refuse(client: FakeClient) -> list[Waiting]:
            raise ValueError("no hooks")

        monkeypatch.setattr(FakeClient, "sequences_awaiting_resume", refuse)
        response = server(FakeClient()).get("/v1/sequences_awaiting_resume")
        assert response.status_code == 400 and "no hooks" in response.text

    @pytest.mark.parametrize(("method", "path"), [("GET", "sequences_awaiting_resume"), ("POST", "resume_sequence")])
    def test_an_engine_without_hooks_says_so(self, method: str, path: str) -> None:
        """V1's client has no such method."""
        response = server(SimpleNamespace()).request(method, f"/v1/{path}", json={"request_id": "r"})
        assert response.status_code == 400 and "V1" in response.text


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
        """The answer has the id of the call."""
        call = RPCHookCall(method="sequences_awaiting_resume")
        assert in_engine_process(call)[1] == [RPCHookResult(call.request_id, [WAITING])]

    def test_an_error_goes_back_and_the_engine_goes_on(self) -> None:
        """The error concerns only the caller."""
        (answer,) = in_engine_process(RPCHookCall(method="resume_sequence", arguments=("nobody",)))[1]
        assert isinstance(answer, RPCError)
        assert (str(answer.exception), answer.is_engine_errored) == (NO_SUCH, False)

    def test_no_call_ends_the_engine(self) -> None:
        """The engine goes on, whatever a call raises."""
        (answer,) = in_engine_process(RPCHookCall(method="resume_sequence", arguments=()))[1]
        assert isinstance(answer, RPCError) and not answer.is_engine_errored

    def test_adapters_are_upstreams(self) -> None:
        """Requests to load an adapter come the same way."""
        engine, _ = in_engine_process(RPCLoadAdapterRequest("adapter"))
        assert engine.calls == [("add_lora", "adapter")]

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


class TestFrontEnd:
    def make_client(self) -> MQLLMEngineClient:
        client = MQLLMEngineClient.__new__(MQLLMEngineClient)
        client.output_queues, client._errored_with = {}, None
        client.input_socket = FakeSocket(client)
        client.tokenizer = SimpleNamespace(get_lora_tokenizer_async=self.tokenizer_of)
        return client

    async def tokenizer_of(self, lora_request: LoRARequest) -> Any:
        assert lora_request == ADAPTER
        return CharTokenizer()

    def test_it_gets_what_the_engine_returns(self) -> None:
        """It keeps no queue afterwards."""
        client = self.make_client()
        assert asyncio.run(client.sequences_awaiting_resume()) == [WAITING]
        assert client.output_queues == {}

    def test_an_engine_that_has_ended_is_not_waited_for(self) -> None:
        """No answer would come."""
        client = self.make_client()
        client._errored_with = RuntimeError("gone")
        with pytest.raises(MQEngineDeadError):
            asyncio.run(client.sequences_awaiting_resume())

    def test_it_raises_what_the_engine_raises(self) -> None:
        """An error of a resume reaches its caller."""
        client = self.make_client()
        with pytest.raises(ValueError, match="nobody"):
            asyncio.run(client.resume_sequence("nobody"))
        assert client.output_queues == {}

    @pytest.mark.parametrize(("given", "ids"), [("ab", (97, 98)), ([7], (7,)), (None, ())])
    def test_it_encodes_what_it_is_given(
        self, given: Any, ids: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It uses the tokenizer of the sequence's adapter, and the engine gets ids."""
        resumed: list[Any] = []
        monkeypatch.setattr(FakeEngine, "resume_sequence", lambda _, *args: resumed.append(args))
        asyncio.run(self.make_client().resume_sequence("r", given))
        assert resumed == [("r", ids)]

    @pytest.mark.parametrize("given", ["a" * 201, [7] * 201, "a" * 10**6])
    def test_what_does_not_fit_does_not_reach_the_engine(self, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """The sequence keeps waiting."""
        monkeypatch.setattr(FakeEngine, "resume_sequence", None)
        with pytest.raises(ValueError, match="room for 200"):
            asyncio.run(self.make_client().resume_sequence("r", given))
