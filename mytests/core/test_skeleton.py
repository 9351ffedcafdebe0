# SPDX-License-Identifier: Apache-2.0
"""Which texts are outlines, and what their points become, without an engine."""

from collections.abc import Sequence
from typing import Any

import pytest

from mytests.harness.outline_engine import TOKENIZER, ids
from sequence_hooks.handlers import Actions, TokenEvent
from sequence_hooks.protocols.outlines import break_after, checked_outline, heading, label_of, points_in
from sequence_hooks.protocols.skeleton import handler


def asked(text: str, **arguments: Any) -> Actions:
    """What is done about the last token of ``text``."""
    *before, last = ids(text)
    return handler(TOKENIZER).on_token(TokenEvent(last, "r", (), tuple(before), 0, 0, 3, arguments=arguments))


class TestOutline:
    @pytest.mark.parametrize(
        ("text", "points"),
        [
            ("1. a\n2. b\n###", ["a", "b"]),
            ("  1. a b\n\n2. c \n### more", ["a b", "c"]),
            ("1. a\n2. b\n3. c", ["a", "b"]),
            ("1. a\x0cb\u2028c\n", ["a b c"]),
            ("1. a\n2. A.\n3. ...\n4. b\n###", ["a", "b"]),
            ("1. ...\n###", []),
            ("1. a\n1. b\n###", None),
            ("1. a\nb\n###", None),
            ("1.\n###", None),
            ("So\n1. a\n###", None),
            ("###", None),
        ],
    )
    def test_it_is_all_of_an_answer(self, text: str, points: list[str] | None) -> None:
        """Up to its mark, or to the last line that is written; numbered from 1, and without what says nothing new."""
        found = points_in(text)
        assert (None if found is None else [label for _, label in found]) == points

    @pytest.mark.parametrize(
        ("point", "begin"),
        [("a", "2. a:"), ("a: ", "2. a:"), ("etc.", "2. etc:"), ("a doctor,:", "2. a doctor:"), ("Why? ", "2. Why?")],
    )
    def test_an_expansion_begins_with_its_point(self, point: str, begin: str) -> None:
        """And one mark."""
        assert heading(2, label_of(point)) == begin

    @pytest.mark.parametrize(("end", "between"), [("", "\n\n"), ("\n", "\n"), ("\n\n\n", "")])
    def test_an_empty_line_stands_between_two_points(self, end: str, between: str) -> None:
        """Whatever the first one ends with."""
        assert break_after(f"a{end}") == between

    @pytest.mark.parametrize(
        ("given", "points"),
        [
            (["a", " b "], ("a", "b")),
            (["a\r", "b\x0bc", "d\u2028e", "\x1cf\x85", "g\nh"], ("a", "b c", "d e", "f", "g h")),
            (["1. a", "2) b"], ("a", "b")),
            (["1. a", "b"], ("1. a", "b")),
            (["1984. A book"], ("1984. A book",)),
            (["Section 1. Costs"], ("Section 1. Costs",)),
        ],
    )
    def test_a_caller_may_give_any_text(self, given: list[str], points: tuple[str, ...]) -> None:
        """Each point is one line, and has one number."""
        assert checked_outline(given, 10) == points


class TestChildren:
    @pytest.mark.parametrize(
        ("arguments", "most"),
        [
            ({"answer_tokens": 214, "point_tokens": 160}, 100),
            ({"answer_tokens": 999, "point_tokens": 160}, 160),
            ({"answer_tokens": 999}, 493),
            ({"point_tokens": 160}, 160),
            ({"answer_tokens": 3}, 1),
            ({"answer_tokens": "many", "point_tokens": -1}, None),
        ],
    )
    def test_points_share_what_an_answer_may_have(self, arguments: dict[str, Any], most: int | None) -> None:
        """After the outline. What a client has sent that is no number says nothing."""
        params: dict[str, Any] = {"structured_outputs": None} | ({} if most is None else {"max_tokens": most})
        assert [each.sampling_params for each in asked("1. a\n2. b\n###", **arguments).spawn] == [params] * 2

    @pytest.mark.parametrize(("arguments", "ends"), [({"end_at_join": 1}, True), ({}, False)])
    def test_the_last_point_that_was_asked_for_ends_the_outline(self, arguments: dict[str, Any], ends: bool) -> None:
        """Without its mark, if nothing is to follow the points."""
        actions = asked("1. a\n2. b\n", num_points=2, **arguments)
        assert (len(actions.spawn), actions.block) == (2, ends)

    @pytest.mark.parametrize("outline", [7, "a", [1], ["a", ""]])
    def test_what_is_no_outline_among_the_arguments_says_nothing(self, outline: Any) -> None:
        """A client may have sent it beside the server."""
        assert asked("###", outline=outline) == Actions()

    def test_a_callers_outline_that_is_too_much_spawns_nothing(self) -> None:
        """A caller may have sent it without the server's check."""
        assert asked("###", outline=["x"] * 10_000) == Actions(is_malformed=True)

    def test_a_long_answer_is_not_read_at_each_of_its_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its first tokens say that it is no outline."""
        decode, read = type(TOKENIZER).decode, list[int]()

        def noted(tokenizer: Any, token_ids: Sequence[int], **options: Any) -> str:
            read.append(len(token_ids))
            return decode(tokenizer, token_ids, **options)

        monkeypatch.setattr(type(TOKENIZER), "decode", noted)
        assert asked("1. a\nSo\n" + "and on\n" * 1000) == asked("So\n" * 1000) == Actions()
        assert max(read) < 200
