# SPDX-License-Identifier: Apache-2.0
"""Chats that ask for an outline, without a server."""

import re
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest

from mytests.harness.outline_engine import Kind
from mytests.harness.outline_requests import POINTS, SKELETON, Request, asked, changed, with_messages
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.protocols.outlines import outline_or_other_regex, outline_regex
from sequence_hooks.serving.live.questions import note_question, question_of
from sequence_hooks.serving.outlines.forms import Chat
from sequence_hooks.serving.outlines.requests import (
    has_outlines,
    misspelled_field,
    refused,
    refused_fields,
    regexes,
    with_aliases,
)

THINKS, AS_JSON = {"enable_thinking": True}, SimpleNamespace(type="json_object")
REFUSED: list[tuple[Request, str]] = [
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
    (Request(skeleton=True, vllm_xargs={"max_tree_tokens": "many"}), "max_tree_tokens is 'many'; use an integer"),
    (Request(outline=["x" * 201]), "give points of at most 200 characters"),
    (Request(skeleton=1), "skeleton is 1; use true, false or 'always'"),
    (Request(skeleton=True, use_beam_search=True), "use_beam_search is true, and beams"),
    (Request(skeleton=True, best_of=2), "best_of is 2, and all choices"),
    (Request(skeleton="always", chat_template_kwargs=THINKS), "chat_template_kwargs has enable_thinking"),
    (Request(skeleton=True, tools=[1]), "tools are given"),
    (Request(skeleton=True, continue_final_message=True), "continue_final_message is true"),
    (Request(skeleton=True, response_format=AS_JSON), "response_format is 'json_object', and an outline"),
    (with_messages(skeleton=True), "messages ends with one of the role None; end with a user's"),
    (with_messages({"role": "assistant", "content": ""}, skeleton=True), "of the role 'assistant'; end with a"),
]


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

    @pytest.mark.parametrize("field", [{"max_tokens": 100}, {"chat_template_kwargs": THINKS}])
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
        assert vars(found.plain) == vars(Request("m", stream=True, stream_children=True))

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

    @pytest.mark.parametrize(("request_", "message"), REFUSED)
    def test_what_cannot_be_is_refused(self, request_: Request, message: str) -> None:
        """The error names the field, its value and the way out."""
        with pytest.raises(ValueError, match=re.escape(message)):
            asked(request_)


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


def test_a_misspelled_field_is_refused() -> None:
    """Upstream would ignore it; fields that are plainly others' pass, and those of outlines where there are none."""
    for name in ("skeletn", "out_line", "conclusions", "stream_childs"):
        assert f"'{name}' is not a field, but" in str(misspelled_field(Request("m", **{name: True}), SKELETON))
    assert misspelled_field(Request(skeleton=True, online=True, top_a=1, streaming=True), SKELETON) is None
    assert misspelled_field(Request(skeletn=True), SpecialKwargs(promise_token_id=1)) is None


@pytest.mark.parametrize("content", ["why?", [{"type": "text", "text": "why?"}, {}], None])
def test_a_chat_tells_what_it_asks(content: Any) -> None:
    """For the page alone, if it is a text."""
    request = with_messages({"role": "user", "content": content})
    note_question(SpecialKwargs(sync_token="s", live_page=True), Chat(request))
    assert question_of(SimpleNamespace(extra_args=request.vllm_xargs)) == ("why?" if content else "")
    assert question_of(SimpleNamespace(extra_args={"sequence_hooks_question": [10**5000]})) == ""


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
