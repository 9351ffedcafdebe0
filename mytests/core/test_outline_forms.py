# SPDX-License-Identifier: Apache-2.0
"""Requests of ``/v1/responses`` that ask for an outline, and what is returned for one of any route."""

import asyncio
import re
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from mytests.harness.outline_requests import ItemRequest, Request, asked, changed
from sequence_hooks.serving.outlines.answer import NoOutline, OutlineAnswer
from sequence_hooks.serving.outlines.forms import Response
from sequence_hooks.serving.outlines.requests import Asking, answered

LOW_EFFORT, AS_JSON = SimpleNamespace(effort="low"), SimpleNamespace(format=SimpleNamespace(type="json_schema"))


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
        assert asked(ItemRequest("why?", reasoning=LOW_EFFORT), Response) is None
        assert asked(ItemRequest("why?", reasoning=SimpleNamespace(effort="none")), Response) is not None

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"background": True}, "background is true, and an outline's answer is not stored"),
            ({"reasoning": LOW_EFFORT}, "reasoning has the effort 'low', and an answer that has to be"),
            ({"text": AS_JSON}, "text.format is 'json_schema', and an outline has a form"),
            ({"input": [SimpleNamespace(role="assistant")]}, "input ends with one of the role 'assistant'; end with a"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_what_cannot_be_is_refused(self, given: dict[str, Any], message: str) -> None:
        """By the field's name on this route."""
        with pytest.raises(ValueError, match=re.escape(message)):
            asked(ItemRequest(**{"input": "why?", "skeleton": "always", **given}), Response)


class Stream:
    """What a server returns for a stream: it asks the engine after so many events, and then has no outline."""

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
    """What a server returns, of a stream all of it, and which of its requests it was asked for the answers ``made``."""
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
