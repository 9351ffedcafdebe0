# SPDX-License-Identifier: Apache-2.0
"""What the reader of an answer with an outline gets of an engine's outputs."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from sequence_hooks.results import ChildDelta, Segment, TreeTokens
from sequence_hooks.serving.outline_requests import Asked
from sequence_hooks.serving.outline_view import read, without_outline

ASKED = Asked((), False)
SEGMENTS = (Segment(0, 3, "sampled", None, True), Segment(3, 5, "merged", "r_child_0"))


def said(text: str, *token_ids: int, ends: bool = False, index: int = 0, logprobs: Any = None) -> Any:
    """A delta of a choice."""
    tree: dict[str, Any] = {"segments": SEGMENTS, "tree_tokens": TreeTokens(2, 2, 0), "sampled": None}
    fields = {"index": index, "text": text, "token_ids": list(token_ids), "finish_reason": "stop" if ends else None}
    return SimpleNamespace(**fields, logprobs=logprobs, **tree)


def by_child(number: int, text: str, ends: bool = False) -> ChildDelta:
    """A delta of a child."""
    return ChildDelta(f"r_child_{number}", "r", 0, 3, text, (), "stop" if ends else None)


def out(*completions: Any, deltas: tuple[ChildDelta, ...] = ()) -> Any:
    """An output of the engine."""
    return SimpleNamespace(outputs=list(completions), child_deltas=deltas, waiting=(), finished=False)


def told(*outputs: Any, asked: Asked = ASKED, logprobs: bool = False, deltas: bool = True) -> list[Any]:
    """What its reader gets."""

    async def given() -> AsyncIterator[Any]:
        for each in outputs:
            yield each

    async def collect() -> list[Any]:
        return [each async for each in read(given(), asked, deltas, logprobs)]

    return asyncio.run(collect())


def texts(outputs: list[Any]) -> list[str]:
    """What each of them adds to the text."""
    return [completion.text for each in outputs for completion in each.outputs if completion.text]


def outline() -> list[Any]:
    """The outputs of one of two points."""
    return [out(said("1. a\n2. b", 1, 2)), out(said("\n###", 3))]


JOINED = "1. a: A.\n\n2. b: B."


class TestStream:
    def test_points_are_told_in_their_order(self) -> None:
        """The first as it is written, the next once it has ended; the join adds what is left."""
        told_ = told(
            *outline(),
            out(deltas=(by_child(1, " B."),)),
            out(deltas=(by_child(0, " A"),)),
            out(deltas=(by_child(0, ".", ends=True),)),
            out(deltas=(by_child(1, "", ends=True),)),
            out(said(f"{JOINED}\n\nBoth", 4, 5)),
            out(said(".", 6, ends=True)),
        )
        assert texts(told_) == ["1. a:", " A", ".\n\n2. b: B.", "\n\nBoth", "."]
        token_ids = [token_id for each in told_ for completion in each.outputs for token_id in completion.token_ids]
        assert token_ids == [4, 5, 6]
        assert not any(each.child_deltas for each in told_)
        assert told_[-1].outputs[0].segments == (Segment(0, 2, "merged", "r_child_0"),)
        assert told_[-1].outputs[0].tree_tokens == TreeTokens(2, 2, 0, 3)

    def test_children_are_told_of_if_they_are_asked_for(self) -> None:
        """Beside the text."""
        told_ = told(*outline(), out(deltas=(by_child(0, " A"),)), asked=Asked((), True))
        assert [each.child_deltas for each in told_][-2:] == [(), (by_child(0, " A"),)]

    def test_an_ordinary_answer_is_told_as_it_comes(self) -> None:
        """And one that might have been an outline as soon as it is none."""
        assert texts(told(out(said("So", 1)), out(said(" be it", 2, ends=True)))) == ["So", " be it"]
        told_ = told(out(said("1. a", 1)), out(said("\nor", 2)), out(said(" b", 3, ends=True)))
        assert texts(told_) == ["1. a\nor", " b"]
        assert [completion.token_ids for each in told_ for completion in each.outputs] == [[], [1, 2], [3]]

    def test_an_outline_that_spawns_nothing_is_told_at_the_end(self) -> None:
        """As is one that is cut."""
        assert texts(told(*outline(), out(said("", 4, ends=True)))) == ["1. a\n2. b\n###"]
        assert texts(told(out(said("1. a\n2.", 1, ends=True)))) == ["1. a\n2."]

    def test_what_is_thought_is_told_at_once(self) -> None:
        """And the outline after it is held back."""
        told_ = told(
            out(said("<think>x", 1)),
            out(said("</think>\n1. a", 2)),
            out(said("\n###", 3)),
            out(deltas=(by_child(0, " A", ends=True),)),
        )
        assert texts(told_) == ["<think>x", "</think>", "1. a: A"]

    def test_a_callers_points_are_told(self) -> None:
        """Which the choice itself never says."""
        told_ = told(out(said("\n###", 1)), out(deltas=(by_child(0, " A"),)), asked=Asked(("own",), False))
        assert texts(told_) == ["1. own: A"]

    def test_with_logprobs_points_are_told_at_the_join(self) -> None:
        """With those of their tokens, and none without."""
        told_ = told(
            out(said("1. a", 1, logprobs=["x"])),
            out(said("\n###", 2, 2, logprobs=["y", "y"])),
            out(deltas=(by_child(0, " A", ends=True),)),
            out(said("1. a: A", 3, 4, logprobs=["z", "z"])),
            logprobs=True,
        )
        found = [completion for each in told_ for completion in each.outputs]
        assert [(each.text, each.logprobs) for each in found] == [("", []), ("", []), ("1. a: A", ["z", "z"])]

    def test_one_output_may_have_the_mark_and_the_join(self) -> None:
        """If its reader is slow: the outline's tokens are left out all the same."""
        late = out(said("\n###1. a: A.\n\n2. b: B.", 3, 4, 5), deltas=(by_child(0, " A.", ends=True),))
        told_ = told(out(said("1. a\n2. b", 1, 2)), late)
        assert told_[-1].outputs[0].token_ids == [4, 5]

    def test_an_end_that_is_repeated_tells_nothing_new(self) -> None:
        """Upstream repeats a finished choice with the outputs of others."""
        end = said("So", 1, ends=True)
        (first, again) = told(out(end), out(end))
        assert (first.outputs[0].text, again.outputs[0]) == ("So", end)

    def test_a_child_before_its_parent_waits(self) -> None:
        """As does one whose text its join would not go on from."""
        assert texts(told(out(deltas=(by_child(0, " A"),)))) == []
        changed = (out(deltas=(by_child(0, " A"),)), out(said("1. a: other", 4)), out(said("", 5, ends=True)))
        assert texts(told(out(said("1. a\n###", 1)), *changed)) == ["1. a: A", "ther"]


class TestWhole:
    def test_what_was_replaced_is_gone(self) -> None:
        """From text, tokens, logprobs and segments; all of it is told beside them."""
        completion = said(f"1. a\n2. b\n###{JOINED}", 1, 2, 3, 4, 5, ends=True, logprobs=["a", "b", "c", "d", "e"])
        told(out(completion), deltas=False)
        assert (completion.text, completion.token_ids, completion.logprobs) == (JOINED, [4, 5], ["d", "e"])
        assert completion.segments == (Segment(0, 2, "merged", "r_child_0"),)
        assert (completion.sampled.token_ids, completion.sampled.segments) == ((1, 2, 3, 4, 5), SEGMENTS)

    @pytest.mark.parametrize("segments", [(), SEGMENTS])
    def test_an_answer_without_an_outline_stays(self, segments: Any) -> None:
        """Also with a tree of another kind."""
        completion = said("So", 1, 2, 3, 4, 5, ends=True)
        completion.segments = segments
        without_outline(completion, ASKED)
        assert (completion.text, completion.token_ids, completion.segments) == ("So", [1, 2, 3, 4, 5], segments)
