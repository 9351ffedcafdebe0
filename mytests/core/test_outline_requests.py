# SPDX-License-Identifier: Apache-2.0
"""Requests that ask for an outline, without a server."""

import asyncio
import gc
import json
import re
from collections.abc import AsyncGenerator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from mytests.core.outline_engine import Kind
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.protocols.outlines import outline_or_other_regex, outline_regex
from sequence_hooks.serving.outlines.answer import NoOutline, OutlineAnswer
from sequence_hooks.serving.outlines.forms import Chat, Response
from sequence_hooks.serving.outlines.requests import (
    Asking,
    answered,
    asking,
    has_outlines,
    refused,
    refused_fields,
    regexes,
    with_aliases,
)

SKELETON = SpecialKwargs(protocol="skeleton")
POINTS = {"point_tokens": 160, "end_at_join": 1, "hooks": 1, "stream_children": 1, "tell_segments": 1}
"""What a request is given."""

PARAMS: dict[str, Any] = {
    "output_kind": Kind.FINAL_ONLY,
    "stop": "a",
    "stop_token_ids": [7],
    "include_stop_str_in_output": True,
    "min_tokens": 0,
    "n": 1,
    "logprobs": None,
    "max_tokens": 500,
}


class Request:
    """A chat request as upstream's: fields that it does not know are extra ones."""

    def __init__(self, model: str | None = "m", **extra: Any) -> None:
        own = {name: extra.pop(name) for name in [*extra] if name in vars(type(self))}
        self.model, self.model_extra = model, extra
        self.messages: list[Any] = [{"role": "user", "content": "why?"}]
        vars(self).update(own)
        self.regex: str | None = None

    response_format: Any = None
    tools = chat_template_kwargs = vllm_xargs = max_tokens = max_completion_tokens = best_of = response_format
    continue_final_message = use_beam_search = stream = stream_children = False
    add_generation_prompt = True
    n = 1

    def model_copy(self, deep: bool) -> "Request":
        return deepcopy(self)


def asked(request: Any, form: Any = Chat) -> Asking | None:
    """What a server finds in it."""
    return asking(form(request), SKELETON, constrained)


def changed(request: Any, form: Any = Chat) -> Any:
    """The request as the engine is asked, with its arguments without the answer's own."""
    found = asked(request, form)
    assert found is not None and found.plain.regex is None
    given = SimpleNamespace(**PARAMS, extra_args=found.request.vllm_xargs)
    assert OutlineAnswer.detach(given) is found.answer
    assert {name: getattr(given, name) for name in PARAMS} == PARAMS, "they are the server's, which reads them later"
    found.request.vllm_xargs, found.request.limits = found.answer.params.extra_args, found.answer.params
    return found.request


class ItemRequest(Request):
    """A request of ``/v1/responses``, which by default is stored."""

    background: Any = False
    text = reasoning = max_output_tokens = None

    def __init__(self, input: Any, **fields: Any) -> None:
        super().__init__(**{"skeleton": True, **fields})
        del self.messages
        self.input, self.store = input, True


def with_messages(*messages: Any, **extra: Any) -> Request:
    """A request with these."""
    request = Request(**extra)
    request.messages = list(messages)
    return request


class TestAsk:
    @pytest.mark.parametrize("request_", [Request("m:skeleton"), Request(skeleton=True)], ids=["by-name", "by-field"])
    def test_it_is_told_to_write_an_outline(self, request_: Request) -> None:
        """Within a grammar, without thinking, and with hooks."""
        found = changed(request_)
        given = {"num_points": 10, "max_tree_tokens": 500, "answer_tokens": 500, **POINTS}
        assert (found.model, found.vllm_xargs) == ("m", given)
        *examples, question = found.messages
        told = "Give only the outline of your answer, of at most 10 points, or the answer if it is short."
        assert question == {"role": "user", "content": f"why?\n\n{told}"}
        assert examples[0] == {"role": "user", "content": f"How can I save money?\n\n{told}"}
        assert [each["role"] for each in examples] == ["user", "assistant"] * 6
        assert found.regex == outline_or_other_regex(10, False)
        assert found.chat_template_kwargs == {"enable_thinking": False}

    def test_it_may_have_no_other_answer(self) -> None:
        """For a model that would rather not."""
        found = changed(Request(skeleton="always"))
        assert found.regex == outline_regex(10, False)
        assert found.messages[-1]["content"] == "why?\n\nGive only the outline of your answer, of at most 10 points."

    def test_the_engine_ends_it_by_its_tree_alone(self) -> None:
        """What a parent gets would count as its own, and stops are looked for in reading order."""
        params = changed(Request(skeleton=True, conclusion=True)).limits
        assert (params.output_kind, params.max_tokens) == (Kind.DELTA, None)
        assert (params.stop, params.stop_token_ids, params.include_stop_str_in_output) == ([], [], False)
        given = {"num_points": 10, "max_tree_tokens": 500, "answer_tokens": 375, **POINTS}
        assert params.extra_args == {name: value for name, value in given.items() if name != "end_at_join"}

    @pytest.mark.parametrize(("most", "num_points"), [(128, 2), (250, 3), (400, 6), (9000, 10)])
    def test_of_a_short_answer_fewer_points_are_asked_for(self, most: int, num_points: int) -> None:
        """As OpenAI's own field says, or its older one."""
        for request in (Request(skeleton=True, max_tokens=most), Request(skeleton=True, max_completion_tokens=most)):
            found = changed(request)
            assert f"of at most {num_points} points" in found.messages[-1]["content"]
            assert (found.regex, found.vllm_xargs["num_points"]) == (outline_or_other_regex(10, False), num_points)

    def test_others_stay_as_they_are(self) -> None:
        """Whatever their model's name."""
        for request in (Request(), Request(None), Request(skeleton=False)):
            before = deepcopy(vars(request))
            assert asked(request) is None
            assert vars(request) == before

    @pytest.mark.parametrize("field", [{"max_tokens": 100}, {"chat_template_kwargs": {"enable_thinking": True}}])
    def test_what_is_short_or_thought_of_first_is_no_outline(self, field: dict[str, Any]) -> None:
        """It is answered as any other, by the model's own name."""
        request = Request("m:skeleton", **field)
        assert (asked(request), request.model) == (None, "m")
        found = changed(Request(skeleton="always", max_tokens=100, conclusion=True))
        assert (found.regex, "of at most one point." in found.messages[-1]["content"]) == (outline_regex(1, True), True)

    def test_without_an_outline_it_is_answered_as_it_came(self) -> None:
        """But for the model's name."""
        found = asked(Request("m:skeleton", stream=True, stream_children=True))
        assert found is not None
        expected = Request("m", stream=True, stream_children=True)
        assert vars(found.plain) == vars(expected)

    def test_a_callers_outline_begins_the_answer(self) -> None:
        """Nothing is added to the question."""
        found = changed(Request(outline=[" Risks", "Costs"]))
        question, answer = found.messages
        assert (question["content"], answer) == ("why?", {"role": "assistant", "content": "1. Risks\n2. Costs"})
        assert (found.add_generation_prompt, found.continue_final_message, found.regex) == (False, True, r"\n?###")
        assert found.vllm_xargs["outline"] == ["Risks", "Costs"]

    def test_what_the_request_has_stays(self) -> None:
        """Parts of its message, options of its template, and arguments for the engine."""
        parts = [{"type": "text", "text": "why?"}]
        request = with_messages({"role": "user", "content": parts}, skeleton=True, conclusion=True)
        request.chat_template_kwargs, request.vllm_xargs = {"x": True}, {"max_children": 3, "max_tree_tokens": 99}
        found = changed(request)
        told, added = found.messages[-1]["content"]
        assert (told, added["type"]) == (parts[0], "text")
        assert "of at most 3 points" in added["text"] and added["text"].endswith(
            "a conclusion of one or two sentences."
        )
        assert found.chat_template_kwargs == {"enable_thinking": False, "x": True}
        assert (found.vllm_xargs["max_children"], found.vllm_xargs["max_tree_tokens"]) == (3, 99)

    def test_every_grammar_is_known_before(self) -> None:
        """So that none is compiled while a client waits."""
        many = regexes(SKELETON)
        for most in (100, 128, 300, 641, 5000):
            for fields in ({"skeleton": "always"}, {"skeleton": "always", "conclusion": True}, {"outline": ["a"]}):
                assert changed(Request(max_tokens=most, **fields)).regex in many

    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            (Request(skeleton="yes"), "skeleton is 'yes'; use true, false or 'always'"),
            (Request(conclusion=[]), r"conclusion is []; use true or false"),
            (Request(outline="a"), "outline is 'a'; give a list of 1 to 10 points"),
            (Request(outline=["a"] * 10_000), "give a list of 1 to 10 points"),
            (Request(outline=[5]), "outline has 5; give a text with a letter or digit"),
            (Request(outline=["  "]), "outline has ''; give a text"),
            (Request(outline=["..."]), "outline has '...'; give a text"),
            (Request(outline=["a ### b"]), "outline has 'a ### b'; give a text"),
            (Request(outline=["<|im_end|>"]), "outline has '<|im_end|>'; give a text"),
            (Request(outline=["a\ud800"]), "or half of a surrogate pair"),
            (Request(outline=["a", "b"], vllm_xargs={"max_children": 1}), "give a list of 1 to 1 points"),
            (
                Request(skeleton=True, vllm_xargs={"max_tree_tokens": "many"}),
                "max_tree_tokens is 'many'; use an integer",
            ),
            (Request(outline=["x" * 201]), "give points of at most 200 characters"),
            (Request(skeleton=1), "skeleton is 1; use true, false or 'always'"),
            (Request(skeleton=True, use_beam_search=True), "use_beam_search is true, and beams"),
            (Request(skeleton=True, best_of=2), "best_of is 2, and all choices"),
            (
                Request(skeleton="always", chat_template_kwargs={"enable_thinking": True}),
                "chat_template_kwargs has enable_thinking",
            ),
            (Request(skeleton=True, tools=[1]), "tools are given"),
            (Request(skeleton=True, continue_final_message=True), "continue_final_message is true"),
            (
                Request(skeleton=True, response_format=SimpleNamespace(type="json_object")),
                "response_format is 'json_object', and an outline",
            ),
            (with_messages(skeleton=True), "messages ends with one of the role None; end with a user's"),
            (with_messages({"role": "assistant", "content": ""}, skeleton=True), "of the role 'assistant'; end with a"),
        ],
    )
    def test_what_cannot_be_is_refused(self, request_: Request, message: str) -> None:
        """The error names the field, its value and the way out."""
        with pytest.raises(ValueError, match=re.escape(message)):
            asked(request_)


class TestResponse:
    """A request of ``/v1/responses``."""

    def test_its_items_are_asked(self) -> None:
        """Examples follow what a system says; and nothing is stored, where a later request would find them."""
        system, earlier = {"role": "system", "content": "be kind"}, {"role": "assistant", "content": "hi"}
        last = {"role": "user", "content": [{"type": "input_text", "text": "why?"}]}
        found = changed(ItemRequest([system, earlier, last], max_output_tokens=128), Response)
        first, *examples, before, question = found.input
        assert (first, before, len(examples)) == (system, earlier, 12)
        assert question["content"][1]["type"] == "input_text"
        assert (found.store, found.vllm_xargs["num_points"]) == (False, 2)

    def test_a_callers_outline_begins_the_answer(self) -> None:
        """A text is one item."""
        found = changed(ItemRequest("why?", outline=["Risks"]), Response)
        begun = {"role": "assistant", "content": "1. Risks", "status": "in_progress"}
        assert (found.input, found.store) == ([{"role": "user", "content": "why?"}, begun], False)

    def test_what_is_thought_of_first_is_no_outline(self) -> None:
        """As much as it may be thought of."""
        effort = SimpleNamespace(effort="low")
        assert asked(ItemRequest("why?", reasoning=effort), Response) is None
        assert asked(ItemRequest("why?", reasoning=SimpleNamespace(effort="none")), Response) is not None

    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            ("background", "background is true, and an outline's answer is not stored"),
            ("reasoning", "reasoning has the effort 'low', and an answer that has to be"),
            ("text", "text.format is 'json_schema', and an outline has a form"),
            ("input", "input ends with one of the role 'assistant'; end with a user's"),
        ],
    )
    def test_what_cannot_be_is_refused(self, request_: str, message: str) -> None:
        """By the field's name on this route."""
        given = {
            "background": True,
            "reasoning": SimpleNamespace(effort="low"),
            "text": SimpleNamespace(format=SimpleNamespace(type="json_schema")),
            "input": [SimpleNamespace(role="assistant")],
        }[request_]
        with pytest.raises(ValueError, match=re.escape(message)):
            asked(ItemRequest(**{"input": "why?", "skeleton": "always", request_: given}), Response)


class TestOperator:
    """What the fields of `SpecialKwargs` change."""

    def test_a_file_says_how_a_model_is_asked(self, tmp_path: Path) -> None:
        """What it has not, stays."""
        examples = [{"question": "a?", "answer": "1. b\n2. c\n###"}]
        path = written(tmp_path, {"examples": examples, "outline": "List {points}."})
        found = asking(Chat(Request(skeleton=True, conclusion=True)), hooks(outline_prompt=path), constrained)
        assert found is not None
        texts = [each["content"] for each in found.request.messages]
        assert texts[:2] == ["a?\n\nList 10 points.", "1. b\n2. c\n###"]
        assert texts[2] == "why?\n\nList 10 points. After ### write a conclusion of one or two sentences."
        assert hooks(outline_prompt=written(tmp_path, {"always": "x"})).outline_prompt is not None

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"exampels": []}, "it has 'exampels'; give an object with some of examples, outline"),
            ([], "it has []; give an object"),
            ({"outline": " "}, "its outline is ' '; give a text"),
            ({"always": "\ud800"}, r"its always is '\ud800'; give a text that can be encoded"),
            ({"examples": [{"question": "a"}]}, "its examples are [{'question': 'a'}]; give a list of objects"),
            ({"examples": ["a"]}, "its examples are ['a']; give a list"),
            ({"examples": [{"question": "a", "answer": 5}]}, "its answer of an example is 5; give a text"),
            (
                {"examples": [{"question": "a", "answer": "1. b"}]},
                "its answer '1. b' is an outline without a last line ###",
            ),
        ],
    )
    def test_what_the_file_cannot_have_is_refused(self, tmp_path: Path, given: Any, message: str) -> None:
        """When the hooks are made."""
        with pytest.raises(ValueError, match=rf"outline_prompt is .*; {re.escape(message)}"):
            hooks(outline_prompt=written(tmp_path, given))

    @pytest.mark.parametrize(
        ("path", "message"), [(5, "5; give the path of a JSON file, as a string"), ("none.json", "cannot be read")]
    )
    def test_it_has_to_be_there(self, path: Any, message: str) -> None:
        """And JSON."""
        with pytest.raises(ValueError, match=f"outline_prompt is .*{message}"):
            hooks(outline_prompt=path)

    @pytest.mark.parametrize("field", ["outline_prompt", "max_outlines"])
    def test_other_hooks_have_no_outlines(self, tmp_path: Path, field: str) -> None:
        """Who expects them is told."""
        given = {"outline_prompt": written(tmp_path, {}), "max_outlines": 3}
        with pytest.raises(ValueError, match=rf"{field} is .*; leave it out, or set protocol='skeleton'"):
            SpecialKwargs(promise_token_id=1, **{field: given[field]})  # type: ignore[arg-type]

    def test_so_many_are_answered_by_outline_at_once(self) -> None:
        """One more is answered without, unless it has to have one; and one that has ended makes room."""
        gc.collect()
        special_kwargs = hooks(max_outlines=OutlineAnswer.num_open() + 1)

        def ask(**fields: Any) -> Asking | None:
            return asking(Chat(Request(**fields)), special_kwargs, constrained)

        first = ask(skeleton=True)
        assert first is not None and ask(skeleton=True) is None
        assert ask(skeleton="always") is not None and ask(outline=["a"]) is not None
        first.answer.has_ended = True
        assert ask(skeleton=True) is not None


def hooks(**fields: Any) -> SpecialKwargs:
    return SpecialKwargs(protocol="skeleton", **fields)


def constrained(request: Any, regex: str) -> None:
    request.regex = regex


def written(folder: Path, given: Any) -> str:
    """The path of a JSON file with this."""
    path = folder / f"{uuid4().hex}.json"
    path.write_text(json.dumps(given))
    return str(path)


class Stream:
    """What a server returns for a stream.

    Args:
        asks_after: How many events it tells before it asks the engine.
        ends_after: How many, before it is known that there is no outline.
    """

    def __init__(self, asks_after: int, ends_after: int = 9) -> None:
        self.asks_after, self.ends_after, self.num_told, self.is_closed = asks_after, ends_after, 0, False

    async def lines(self) -> AsyncGenerator[str, None]:
        try:
            for event in ("created", "a line"):
                if self.num_told == self.ends_after:
                    raise NoOutline
                self.num_told += 1
                yield event
        finally:
            self.is_closed = True


def answer_of(asked_: Asking, *made: Any) -> tuple[Any, list[Any]]:
    """What a server returns, and which of its requests it was asked; ``made`` are its own answers, or errors.

    Of a stream, all that it tells.
    """
    seen, left = [], list(made)

    async def create(request: Any) -> Any:
        seen.append(request)
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found.lines() if isinstance(found, Stream) else found

    async def whole() -> Any:
        found = await answered(asked_, create)
        return [event async for event in found] if isinstance(found, AsyncGenerator) else found

    return asyncio.run(whole()), seen


class TestAnswered:
    stream: Stream | None = None
    is_outline = was_asked = True

    @pytest.fixture
    def asking_(self, monkeypatch: pytest.MonkeyPatch) -> Asking:
        found = asked(Request(skeleton=True))
        assert found is not None

        async def is_outline(answer: OutlineAnswer) -> bool:
            return self.is_outline

        monkeypatch.setattr(OutlineAnswer, "is_outline", is_outline)
        asks = property(
            lambda answer: self.stream.num_told >= self.stream.asks_after if self.stream else self.was_asked
        )
        monkeypatch.setattr(OutlineAnswer, "was_asked", asks)
        return found

    @pytest.mark.parametrize("asks_after", [0, 1, 9])
    def test_an_outline_is_the_answer(self, asking_: Asking, asks_after: int) -> None:
        """Whole, or as a stream, which may tell something before it asks; so is an error that is returned."""
        assert answer_of(asking_, "whole") == ("whole", [asking_.request])
        assert asking_.answer.has_ended
        self.stream = Stream(asks_after)
        assert answer_of(asking_, self.stream) == (["created", "a line"], [asking_.request])
        assert self.stream.is_closed

    def test_otherwise_it_is_that_of_the_request_as_it_came(self, asking_: Asking) -> None:
        """The stream that has begun is closed, and nothing of it is told."""
        both = [asking_.request, asking_.plain]
        assert answer_of(asking_, NoOutline(), "plain") == ("plain", both)
        self.stream = Stream(2, ends_after=1)
        assert answer_of(asking_, self.stream, "plain") == ("plain", both)
        self.stream, self.is_outline = Stream(1), False
        assert answer_of(asking_, self.stream, "plain") == ("plain", both)
        assert self.stream.is_closed

    def test_an_error_ends_it(self, asking_: Asking) -> None:
        """It counts no more among those that are answered."""
        with pytest.raises(KeyError):
            answer_of(asking_, KeyError())
        assert asking_.answer.has_ended

    @pytest.mark.parametrize("refusal", ["an error", ValueError("too long")])
    def test_what_is_refused_with_its_examples_is_answered_without(
        self, asking_: Asking, refusal: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It may be too long with them, which the log says; but not if it has to be an outline."""
        self.was_asked = False
        with caplog.at_level("INFO", "vllm.sequence_hooks.outlines"):
            assert answer_of(asking_, refusal, "plain") == ("plain", [asking_.request, asking_.plain])
        assert f"refused with its examples: {refusal}" in caplog.text
        must = asked(Request(skeleton="always"))
        assert must is not None
        if isinstance(refusal, Exception):
            with pytest.raises(ValueError, match="too long"):
                answer_of(must, refusal)
        else:
            assert answer_of(must, refusal) == (refusal, [must.request])


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            Request("m:skeleton"),
            "model is 'm:skeleton', which /v1/chat/completions, /v1/responses and /v1/messages answer alone; use 'm'",
        ),
        (Request(outline=["a"]), r"outline is \['a'\], which .* alone; leave it out"),
    ],
)
def test_what_is_no_chat_is_refused(request_: Request, message: str) -> None:
    """By name, with the routes that have it; and other requests are not."""
    assert re.match(message, refused(request_) or "")
    assert refused(Request(skeleton=False)) is None


def test_a_message_of_anthropics_form_has_no_fields_for_it() -> None:
    """Its model would drop them."""
    assert "skeleton is 'always', which /v1/messages has not" in (refused_fields({"skeleton": "always"}) or "")
    assert refused_fields({"model": "m:skeleton"}) is refused_fields([]) is None


def test_hooks_of_another_kind_have_no_outlines() -> None:
    """Nor has a server without hooks."""
    given = [None, SpecialKwargs(promise_token_id=1), SKELETON]
    assert [has_outlines(each) for each in given] == [False, False, True]


def test_a_list_of_models_has_a_name_that_asks_for_an_outline_after_each() -> None:
    """Adapters can be asked, too."""

    class Card(SimpleNamespace):
        def model_copy(self, update: dict[str, str]) -> "Card":
            return Card(**{**vars(self), **update})

    cards = with_aliases([Card(id="m", parent=None), Card(id="adapter", parent="m")])
    found = [(card.id, card.parent) for card in cards]
    assert found == [("m", None), ("m:skeleton", "m"), ("adapter", "m"), ("adapter:skeleton", "adapter")]


class TestGrammar:
    @pytest.mark.parametrize(
        ("text", "is_right"),
        [
            ("1. Sleep\n2. Walk\n###", True),
            ("1. Sleep\n2. Walk\n3. Eat well\n###", True),
            ("1. Sleep\n###", False),
            ("1. a\n2. bc\n###", False),
            ("1. Sleep\n2. Walk\n3. Eat\n4. More\n###", False),
            ("1. Sleep\n2. <|im_end|>\n###", False),
            ("1. Sleep. 2. Eat\n2. Walk\n###", False),
            ("1. " + "x" * 999 + "\n2. Walk\n###", True),
            ("Four,\nof course. 1.", True),
            ("1945", True),
            ("1.5 million", True),
            ("1", True),
            ("1. A long story", False),
        ],
    )
    def test_an_answer_is_an_outline_or_does_not_begin_as_one(self, text: str, is_right: bool) -> None:
        """Of two points to the most that there may be."""
        assert bool(re.fullmatch(outline_or_other_regex(3, False), text)) is is_right

    def test_a_conclusion_follows_the_mark(self) -> None:
        """After an empty line."""
        text = "1. Sleep\n2. Walk\n###"
        assert not re.fullmatch(outline_regex(2, True), text)
        assert re.fullmatch(outline_regex(2, True), f"{text}\n\nBoth\nhelp.")
