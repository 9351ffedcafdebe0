# SPDX-License-Identifier: Apache-2.0
"""The server's own generators around upstream's, which are faked here."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from mytests.harness.served_outputs import DELTA, WAITING, completion, output
from mytests.harness.spoken import TOKENIZER
from sequence_hooks.results import Segment
from sequence_hooks.serving.outlines.answer import Asked, OutlineAnswer
from vllm.config import SpecialKwargs
from vllm.engine.outlines import told
from vllm.entrypoints.openai import api_server
from vllm.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    CompletionRequest,
    ErrorResponse,
    UsageInfo,
)
from vllm.entrypoints.openai.serving_chat import OpenAIServingChat
from vllm.entrypoints.openai.serving_completion import OpenAIServingCompletion
from vllm.entrypoints.openai.serving_engine import OpenAIServing
from vllm.entrypoints.openai.serving_models import BaseModelPath, OpenAIServingModels
from vllm.sampling_params import RequestOutputKind, SamplingParams

RESULT = output(completion(0, Segment(0, 2, "sampled")), deltas=(DELTA,))
WAITS = output(completion(), waiting=(WAITING,))
LINE = 'data: {"choices": [{"index": 0, "finish_reason": "stop"}]}\n\n'


async def results(*items: Any) -> AsyncIterator[Any]:
    for item in items:
        yield item


async def upstreams_stream(serving: Any, request: Any, *args: Any) -> AsyncGenerator[str, None]:
    """A line per result, in place of upstream's stream."""
    (items,) = (arg for arg in args if hasattr(arg, "__anext__"))
    async for _ in items:
        yield LINE


async def upstreams_chat(serving: Any, request: Any, items: AsyncIterator[Any], answer: Any) -> Any:
    """``answer``, once all results have come."""
    async for _ in items:
        pass
    return answer


def lines(made: AsyncIterator[str]) -> list[dict[str, Any]]:
    async def collect() -> list[str]:
        return [line async for line in made]

    return [json.loads(line.removeprefix("data: ")) for line in asyncio.run(collect())]


class Client:
    """The client of an engine with these hooks."""

    def __init__(self, hooks: SpecialKwargs | None = None) -> None:
        self._hooks = hooks

    async def get_vllm_config(self) -> Any:
        return SimpleNamespace(special_kwargs=self._hooks)


def serving_of(cls: type[Any], client: Client) -> Any:
    """A handler of a server, in front of ``client``."""
    serving: Any = object.__new__(cls)
    serving.engine_client = client
    return serving


CHAT, COMPLETION = "chat.completion.chunk", "text_completion"


def streamed(kind: str, monkeypatch: pytest.MonkeyPatch, client: Client, result: Any, **fields: Any) -> list[Any]:
    """The chunks of a stream; a completion's results come with the index of their prompt."""
    if kind == CHAT:
        serving = serving_of(OpenAIServingChat, client)
        monkeypatch.setattr(OpenAIServingChat.__bases__[0], "chat_completion_stream_generator", upstreams_stream)
        chat = ChatCompletionRequest(messages=[], stream=True, **fields)
        return lines(serving.chat_completion_stream_generator(chat, results(result), "id", "model"))
    serving = serving_of(OpenAIServingCompletion, client)
    monkeypatch.setattr(OpenAIServingCompletion.__bases__[0], "completion_stream_generator", upstreams_stream)
    text = CompletionRequest(prompt="", stream=True, **fields)
    return lines(serving.completion_stream_generator(text, [], results((0, result)), "id", 0, "model"))


@pytest.mark.parametrize("kind", [CHAT, COMPLETION])
class TestStreams:
    @pytest.mark.parametrize("wanted", [True, False])
    def test_the_last_chunk_has_the_tree(self, kind: str, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those before it are the child's, if they were asked for."""
        *told, last = streamed(kind, monkeypatch, Client(), RESULT, stream_children=wanted)
        assert last["choices"][0]["segments"]
        chunks = [(chunk["id"], chunk["object"], chunk["child"]["text"]) for chunk in told]
        assert chunks == [("id", kind, "B")] * wanted

    def test_it_says_who_waits(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """In an empty choice, without being asked, where sequences may wait."""
        manual = SpecialKwargs(sync_token_id=5, sync_resume="manual")
        told, _ = streamed(kind, monkeypatch, Client(manual), WAITS)
        (choice,) = told["choices"]
        assert choice["waiting"]["request_id"] == "r"
        assert (choice["delta"] if kind == CHAT else choice["text"]) == ({} if kind == CHAT else "")


class TestOutlines:
    """`mytests/core/test_outline_requests.py` and `mytests/core/test_outline_answers.py` say what becomes of them."""

    HOOKS = SpecialKwargs(protocol="skeleton")
    MESSAGES = ({"role": "user", "content": "why?"},)

    def created(self, monkeypatch: pytest.MonkeyPatch, hooks: SpecialKwargs | None, **fields: Any) -> Any:
        """The first request that upstream gets, or an error."""
        seen = []

        async def create(serving: Any, request: Any) -> Any:
            seen.append(request)
            return request

        monkeypatch.setattr(OpenAIServingChat.__bases__[0], "create_chat_completion", create)
        request = ChatCompletionRequest(messages=list(self.MESSAGES), **fields)
        found = asyncio.run(serving_of(OpenAIServingChat, Client(hooks)).create_chat_completion(request))
        return seen[0] if seen else found

    def test_it_is_told_where_the_engine_is_called(self) -> None:
        """Under an id of its own; other requests go as they are."""

        class Tokenized:
            async def get_tokenizer(self) -> Any:
                return TOKENIZER

        async def generate(params: SamplingParams, name: str) -> AsyncIterator[Any]:
            names.append(name)
            assert params.output_kind == (RequestOutputKind.DELTA if "-" in name else RequestOutputKind.CUMULATIVE)
            fields = {"index": 0, "text": "1. a\n", "token_ids": [1], "logprobs": None, "finish_reason": "length"}
            completion = SimpleNamespace(**fields, segments=())
            yield SimpleNamespace(outputs=[completion], prompt_token_ids=[2], finished=True)

        async def texts(params: SamplingParams) -> list[str]:
            outputs = [each async for each in told(Tokenized(), generate, params, "r")]
            return [completion.text for each in outputs for completion in each.outputs]

        names: list[str] = []
        answer = OutlineAnswer(Asked())
        params = SamplingParams(extra_args=answer.attach(None))
        assert asyncio.run(texts(params)) == ["1. a\n"]
        assert asyncio.run(texts(SamplingParams())) == ["1. a\n"]
        assert names == ["r-outline", "r"]

    def test_what_is_no_chat_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where outlines are expanded; and a name that is unknown is told of the other."""

        async def check(serving: Any, request: Any) -> Any:
            return None if request.model == "m" else ErrorResponse(message="no", type="NotFoundError", code=404)

        monkeypatch.setattr(OpenAIServing.__bases__[0], "_check_model", check)
        named = CompletionRequest(prompt="", model="m:skeleton")
        chat = ChatCompletionRequest(messages=[], model="n")
        serving, plain = (serving_of(OpenAIServingChat, Client(hooks)) for hooks in (self.HOOKS, None))
        found = [asyncio.run(each._check_model(request)) for each in (serving, plain) for request in (named, chat)]
        assert [(each.code, "outline" in each.message) for each in found] == [
            (400, False),
            (404, True),
            (404, False),
            (404, False),
        ]
        assert "/v1/chat/completions" in found[0].message
        assert asyncio.run(serving._check_model(ChatCompletionRequest(messages=[], model="m"))) is None

    def test_a_request_for_one_gets_a_grammar(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only where outlines are expanded; another grammar is refused with an error, as any bad request."""
        regexes = [self.created(monkeypatch, hooks, skeleton=True).guided_regex for hooks in (self.HOOKS, None)]
        assert (regexes[0] or "").startswith("(1") and regexes[1] is None
        error = self.created(monkeypatch, self.HOOKS, skeleton=True, guided_choice=["a"])
        assert (error.code, "guided_choice is given" in error.message) == (400, True)

    @pytest.mark.parametrize(("hooks", "names"), [(HOOKS, ["m", "m:skeleton"]), (None, ["m"])])
    def test_models_have_a_name_that_asks_for_one(self, hooks: SpecialKwargs | None, names: list[str]) -> None:
        """Only where outlines are expanded."""
        serving = serving_of(OpenAIServingModels, Client(hooks))
        serving.base_model_paths, serving.max_model_len = [BaseModelPath("m", "a-folder")], 8
        serving.lora_requests = serving.prompt_adapter_requests = []
        assert [card.id for card in asyncio.run(serving.show_available_models()).data] == names


class TestResponses:
    def test_of_a_completion(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each choice has the tree of its own completion."""
        response = SimpleNamespace(choices=[SimpleNamespace(), SimpleNamespace()], usage=UsageInfo())
        base = OpenAIServingCompletion.__bases__[0]
        monkeypatch.setattr(base, "request_output_to_completion_response", lambda *_: response)
        serving = OpenAIServingCompletion.__new__(OpenAIServingCompletion)
        serving.request_output_to_completion_response([output(completion()), RESULT])
        assert [hasattr(choice, "segments") for choice in response.choices] == [False, True]

    def test_of_a_chat(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An error has no choices, and passes unchanged."""
        monkeypatch.setattr(OpenAIServingChat.__bases__[0], "chat_completion_full_generator", upstreams_chat)
        serving = OpenAIServingChat.__new__(OpenAIServingChat)
        answer = ChatCompletionResponse.model_construct(choices=[SimpleNamespace()], usage=UsageInfo())
        error = ErrorResponse(message="no", type="no", code=400)
        for expected in (answer, error):
            made = serving.chat_completion_full_generator(None, results(RESULT), expected)  # type: ignore[arg-type]
            assert asyncio.run(made) is expected
        assert answer.choices[0].segments


def test_the_module_starts_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts upstream's server with the given options."""
    started: list[Any] = []
    monkeypatch.setattr("sys.argv", ["api_server", "--port", "1234"])
    monkeypatch.setattr(api_server.upstream, "run_server", started.append)
    monkeypatch.setattr(api_server.uvloop, "run", lambda _: None)
    api_server.main()
    assert started[0].port == 1234
