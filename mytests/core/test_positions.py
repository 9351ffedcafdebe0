# SPDX-License-Identifier: Apache-2.0
"""The positions of contexts in which results overlap."""

from sys import maxsize
from typing import Any

import pytest

from mytests.harness.characters import ids
from sequence_hooks.kv.transfer import Run
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.positions import PLAIN, ChildPositions, Positions, num_within, overlapping


def span(text: str, child: str | None = None, start: int = 0) -> Span:
    """Tokens of a child from a place in its output on, or inserted ones."""
    return Span(ids(text), child, range(start, start + len(text)) if child else ())


def after(*spans: Span, num_tokens: int = 4, before: Positions = PLAIN, **strands: int) -> list[int]:
    """The positions of what a join appends, and of the next token; ``strands`` are indices of first sampled tokens."""
    places = {name: ChildPositions(num_prompt, before) for name, num_prompt in strands.items()}
    positions = overlapping(before, num_tokens, spans, places)
    end = num_tokens + sum(len(each.token_ids) for each in spans)
    return [positions.of(index) for index in range(num_tokens, end + 1)]


BAR, PREFIX, BOTH = span("|"), Span(ids("cc"), None, range(-2, 0), "b"), {"a": 3, "b": 3}


class TestOverlapping:
    @pytest.mark.parametrize(
        ("spans", "strands", "positions"),
        [
            ([span("aaaa", "a"), BAR, span("bb", "b"), BAR, span(",.")], BOTH, [3, 4, 5, 6, 7, 3, 4, 5, 8, 9, 10]),
            ([span("aaaa", "a"), BAR, span("bb", "b")], BOTH, [3, 4, 5, 6, 7, 3, 4, 8]),
            ([span("aaaa", "a"), PREFIX, span("bb", "b")], {"a": 3, "b": 5}, [3, 4, 5, 6, 3, 4, 5, 6, 7]),
            # One without a strand has not seen what its parent had, and follows what is before it.
            ([span("aa", "a"), span("bbb", "b"), span(".")], {"a": 9}, [9, 10, 11, 12, 13, 14, 15]),
            ([span("ab")], {}, [4, 5, 6]),
            ([], {}, [4]),
        ],
        ids=["its-picture", "without-a-last-text", "with-a-prefix", "without-a-strand", "text-alone", "nothing"],
    )
    def test_each_result_begins_where_its_child_did(
        self, spans: list[Span], strands: dict[str, Any], positions: list[int]
    ) -> None:
        """What closes a result follows it, and what comes last, or the next token, follows the furthest token."""
        assert after(*spans, **strands) == positions

    def test_a_second_join_goes_on_from_the_first(self) -> None:
        """At the positions that it left."""
        spans = [span("aaaa", "a"), span("b", "b")]
        first = overlapping(PLAIN, 4, spans, {"a": ChildPositions(3, PLAIN), "b": ChildPositions(3, PLAIN)})
        # The parent samples at 7 and 8; its next children start at 9.
        found = after(span("cc", "c"), span("d", "d"), span("."), num_tokens=11, before=first, c=11, d=11)
        assert found == [9, 10, 9, 11, 12]
        assert first.of(9) == 7


class TestPositions:
    def test_they_go_on_from_where_they_were_put(self) -> None:
        """The latest run that begins at or before an index gives its position."""
        positions = Positions()
        positions.put(5, 5)
        positions.put(8, 6)
        positions.put(10, 4)
        assert [positions.of(index) for index in (0, 7, 8, 9, 10, 30)] == [0, 7, 6, 7, 4, 24]
        assert positions.last_change == 10

    def test_a_copy_is_independent(self) -> None:
        """Positions are put into copies alone."""
        copied = PLAIN.copy()
        copied.put(3, 9)
        assert (copied.of(3), PLAIN.of(3)) == (9, 3)

    @pytest.mark.parametrize(
        ("num_tokens", "positions"),
        [(12, [0, 3, 4, 6, 8]), (9, [0, 3, 4, 6, 8]), (8, [0, 3, 4, 6, 7]), (7, [0, 3, 4, 7, 8]), (2, [0, 3, 5, 8, 9])],
    )
    def test_a_cut_leaves_those_before_it(self, num_tokens: int, positions: list[int]) -> None:
        """What comes next follows the last token that is left, or a join that was all before it."""
        overlapping = Positions([0, 4, 7, 9], [0, -1, -2, -1])
        left = overlapping.until(num_tokens)
        assert [left.of(index) for index in (0, 3, 5, 8, 9)] == positions

    def test_a_cut_where_the_last_result_begins_leaves_none_of_it(self) -> None:
        """What comes next does not stand beside the results before it."""
        left = Positions([0, 4], [0, -2]).until(4)
        assert [left.of(index) for index in (3, 4, 5)] == [3, 4, 5]

    def test_runs_have_one_offset_each(self) -> None:
        """From any token on."""
        positions = Positions([0, 4, 6], [0, -2, 3])
        assert [*positions.runs(2, 9)] == [Run(2, 4, 0), Run(4, 6, -2), Run(6, 9, 3)]
        assert [*positions.runs(4, 5)] == [Run(4, 5, -2)]
        assert [*positions.runs(7, 7)] == []

    def test_those_of_any_context_are_told_apart(self) -> None:
        """Only the tokens at the front are where every request has them."""
        assert (PLAIN.num_plain, PLAIN.key) == (maxsize, None)
        positions = Positions([0, 4], [0, -2])
        assert positions.num_plain == 4
        assert positions.key == Positions([0, 4], [0, -2]).key != Positions([0, 4], [0, -3]).key

    @pytest.mark.parametrize(("offset", "lead"), [(-2, 0), (0, 0), (3, 3)])
    def test_how_far_they_lead(self, offset: int, lead: int) -> None:
        """A position may lag behind the number of tokens, or be ahead of it."""
        assert Positions([0, 4], [0, offset]).lead == lead

    @pytest.mark.parametrize(("limit", "number"), [(20, 6), (13, 6), (12, 5), (9, 2), (8, 1), (7, 1), (6, 0), (2, 0)])
    def test_how_many_a_model_has(self, limit: int, number: int) -> None:
        """Up to the first that it has not: here the six from index 6 on have the positions 6 and 8 to 12."""
        assert num_within(Positions([0, 7], [0, 1]), 6, 12, limit) == number
