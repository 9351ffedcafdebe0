# SPDX-License-Identifier: Apache-2.0
"""Requests that ask for an outline, without a server."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.outlines import may_become_outline, outline_or_other_regex, outline_regex
from sequence_hooks.serving.outline_requests import Asked, ask, asked_of, has_outlines, with_aliases

SKELETON = SpecialKwargs(protocol="skeleton")


class Request:
    """A chat request as upstream's: fields that it does not know are extra ones."""

    def __init__(self, model: str | None = "m", **extra: Any) -> None:
        own = {name: extra.pop(name) for name in [*extra] if name in vars(type(self))}
        vars(self).update(
            {"model": model, "messages": [{"role": "user", "content": "why?"}], "model_extra": extra, **own}
        )
        self.regex: str | None = None

    response_format: Any = None
    tools: Any = None
    messages: list[Any]
    continue_final_message = False
    add_generation_prompt = True
    chat_template_kwargs: Any = None
    vllm_xargs: Any = None
    stream = False
    stream_children = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("sequence_hooks"):
            vars(self)["model_extra"][name] = value
        else:
            vars(self)[name] = value


def asked(request: Any) -> Any:
    """The request, as the server changes it."""
    ask(request, SKELETON, lambda each, regex: setattr(each, "regex", regex))
    return request


def with_messages(*messages: Any, **extra: Any) -> Request:
    """A request with these."""
    request = Request(**extra)
    request.messages = list(messages)
    return request


def test_a_field_of_a_clients_own_asks_for_nothing() -> None:
    """Even by the name under which the server remembers what was asked for."""
    assert asked_of(asked(Request(sequence_hooks_outline={"outline": ["Risks"]}))) is None


class TestAsk:
    @pytest.mark.parametrize("request_", [Request("m:skeleton"), Request(skeleton=True)], ids=["by-name", "by-field"])
    def test_it_is_told_to_write_an_outline(self, request_: Request) -> None:
        """Within a grammar, without thinking, and with hooks."""
        found = asked(request_)
        assert (found.model, found.vllm_xargs) == ("m", {"end_at_join": 1, "hooks": 1})
        content = found.messages[0]["content"]
        assert content.startswith("why?\n\nFirst write only the skeleton") and "three to 10 points" in content
        assert found.regex == outline_or_other_regex(10, False)
        assert found.chat_template_kwargs == {"enable_thinking": False}
        assert asked_of(found) == Asked((), False)

    def test_it_may_have_no_other_answer(self) -> None:
        """For a model that would rather not."""
        found = asked(Request(skeleton="always"))
        assert found.regex == outline_regex(10, False)
        assert "short answer" not in found.messages[0]["content"]

    def test_others_stay_as_they_are(self) -> None:
        """Whatever their model's name."""
        for request in (Request(), Request(None), Request(skeleton=False)):
            before = dict(vars(request))
            asked(request)
            assert (vars(request), asked_of(request)) == (before, None)

    def test_a_callers_outline_begins_the_answer(self) -> None:
        """Nothing is added to the question."""
        found = asked(Request(outline=[" Risks", "Costs"]))
        question, answer = found.messages
        assert (question["content"], answer) == ("why?", {"role": "assistant", "content": "1. Risks\n2. Costs"})
        assert (found.add_generation_prompt, found.continue_final_message, found.regex) == (False, True, r"\n?###")
        assert asked_of(found) == Asked(("Risks", "Costs"), False)

    def test_what_the_request_has_stays(self) -> None:
        """Parts of its message, options of its template, arguments for the engine, and children that it streams."""
        parts = [{"type": "text", "text": "why?"}]
        request = with_messages({"role": "user", "content": parts}, skeleton=True, conclusion=True)
        request.chat_template_kwargs, request.vllm_xargs = {"enable_thinking": True}, {"max_children": 3}
        request.stream = request.stream_children = True
        found = asked(request)
        assert found.messages[0]["content"][0] == parts[0]
        assert "conclusion" in found.messages[0]["content"][1]["text"]
        assert found.chat_template_kwargs == {"enable_thinking": True}
        assert found.vllm_xargs == {"max_children": 3, "hooks": 1}
        assert (found.stream_children, asked_of(found)) == (True, Asked((), True))

    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            (Request(skeleton="yes"), "skeleton is 'yes'; use true, false or 'always'"),
            (Request(conclusion=[]), r"conclusion is \[\]; use true or false"),
            (Request(outline="a"), "outline is 'a'; give a list of 1 to 10 points"),
            (Request(outline=["a"] * 10_000), "give a list of 1 to 10 points"),
            (Request(outline=[5]), "outline has 5; give lines of 1 to 200 characters"),
            (Request(outline=["  "]), "outline has '  '; give lines"),
            (Request(outline=["a ### b"]), "outline has 'a ### b'; give lines"),
            (Request(outline=["<|im_end|>"]), "outline has '<|im_end|>'; give lines"),
            (Request(skeleton=True, tools=[1]), "tools are given"),
            (Request(skeleton=True, continue_final_message=True), "continue_final_message is true"),
            (
                Request(skeleton=True, response_format=SimpleNamespace(type="json_object")),
                "response_format is 'json_object', and an outline",
            ),
            (with_messages(skeleton=True), "messages end with one of the role None; end with a user's"),
            (with_messages({"role": "assistant", "content": ""}, skeleton=True), "of the role 'assistant'; end with a"),
        ],
    )
    def test_what_cannot_be_is_refused(self, request_: Request, message: str) -> None:
        """The error names the field, its value and the way out."""
        with pytest.raises(ValueError, match=message.replace("|im_end|", r"\|im_end\|")):
            asked(request_)


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
            ("1. " + "x" * 61 + "\n2. Walk\n###", False),
            ("Four,\nof course. 1.", True),
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


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("", True),
        ("1", True),
        ("1.", True),
        ("\n1. Sle", True),
        ("1. Sleep\n\n2. Walk\n##", True),
        ("<think>x</think>\n1. a", True),
        ("So", False),
        ("1. Sleep\nor", False),
        ("12 apples", False),
    ],
)
def test_the_beginning_of_an_outline_is_known(text: str, may: bool) -> None:
    """A stream holds it back."""
    assert may_become_outline(text) is may
