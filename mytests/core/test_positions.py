# SPDX-License-Identifier: Apache-2.0
"""The positions of contexts in which results overlap."""

import dataclasses
from collections.abc import Sequence
from sys import maxsize

import pytest

from mytests.harness.characters import EOS, PROMISE, SYNC, ids
from mytests.harness.plain_engine import HOOKS, PlainBranch, PlainEngine, fed
from sequence_hooks.handlers import Merged
from sequence_hooks.kv.transfer import Run
from sequence_hooks.results import ChildOutput
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.positions import PLAIN, ChildPositions, Positions, num_within, overlapping

OVERLAP = dataclasses.replace(HOOKS, child_merge_strategy="kv_inject", position_rule="overlap", children_per_promise=2)


def span(text: str, child: str | None = None, start: int = 0) -> Span:
    """Tokens of a child from a place in its output on, or inserted ones."""
    return Span(ids(text), child, range(start, start + len(text)) if child else ())


def after(*spans: Span, num_tokens: int = 4, before: Positions = PLAIN, **strands: int) -> list[int]:
    """The positions of what a join appends to a context, and of the next token.

    Args:
        strands: The index of each child's first sampled token.
    """
    places = {name: ChildPositions(num_prompt, before) for name, num_prompt in strands.items()}
    positions = overlapping(before, num_tokens, spans, places)
    end = num_tokens + sum(len(each.token_ids) for each in spans)
    return [positions.of(index) for index in range(num_tokens, end + 1)]


class TestOverlapping:
    def test_it_is_as_its_picture(self) -> None:
        """What closes a result follows it, and what comes last follows the furthest token."""
        spans = span("aaaa", "a"), span("|"), span("bb", "b"), span("|"), span(",.")
        assert after(*spans, a=3, b=3) == [3, 4, 5, 6, 7, 3, 4, 5, 8, 9, 10]

    def test_without_a_last_text_the_parent_follows_the_furthest_token(self) -> None:
        """Its next token comes after the longest result."""
        assert after(span("aaaa", "a"), span("|"), span("bb", "b"), a=3, b=3) == [3, 4, 5, 6, 7, 3, 4, 8]

    def test_a_prefix_has_the_childs_positions_too(self) -> None:
        """It stands before what the child has sampled."""
        prefix = Span(ids("cc"), None, range(-2, 0), "b")
        assert after(span("aaaa", "a"), prefix, span("bb", "b"), a=3, b=5) == [3, 4, 5, 6, 3, 4, 5, 6, 7]

    def test_a_child_without_a_strand_is_text(self) -> None:
        """It has not seen what its parent had, and follows what is before it."""
        assert after(span("aa", "a"), span("bbb", "b"), span("."), a=9) == [9, 10, 11, 12, 13, 14, 15]

    def test_text_alone_goes_on(self) -> None:
        """What a caller gives, or nothing."""
        assert after(span("ab")) == [4, 5, 6]
        assert after() == [4]

    def test_a_second_join_goes_on_from_the_first(self) -> None:
        """At the positions that it left."""
        spans = [span("aaaa", "a"), span("b", "b")]
        first = overlapping(PLAIN, 4, spans, {"a": ChildPositions(3, PLAIN), "b": ChildPositions(3, PLAIN)})
        # The parent samples at 7 and 8; its next children start at 9.
        assert after(span("cc", "c"), span("d", "d"), span("."), num_tokens=11, before=first, c=11, d=11) == [
            *(9, 10, 9, 11, 12),
        ]  # fmt: skip
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


def joined(engine: PlainEngine, root: PlainBranch, *texts: str) -> None:
    """Let a parent's children sample these texts and end, and join them."""
    for child, text in zip(root.unjoined, texts, strict=True):
        fed(engine, child, *text, EOS)
    engine.driver.join_ready()


def positions_of(branch: PlainBranch) -> list[int]:
    """Those of a sequence's context, and of its next token."""
    return [branch.positions.of(index) for index in range(branch.num_context + 1)]


EXPECTED = [0, 1, 2, 3, 3, 4, 5, 6, 3, 4, 7]
"""Those of ``pp!.abcdxy`` and the next token: "abcd" and "xy" have started after the promise."""


class TestTrees:
    def test_a_join_places_what_it_appends(self) -> None:
        """And a child begins where its parent was."""
        engine = PlainEngine(OVERLAP)
        root = engine.add("r")
        fed(engine, root, PROMISE, SYNC)
        joined(engine, root, "abcd", "xy")
        assert positions_of(root) == EXPECTED
        fed(engine, root, "z", PROMISE, SYNC)
        assert [positions_of(child) for child in root.unjoined] == [[*EXPECTED, 8, 9]] * 2

    @pytest.mark.parametrize("which", [[0], [1], [2], [1, 2], [0, 1, 2]])
    def test_lost_kv_changes_no_position(self, which: list[int]) -> None:
        """Neither that of a parent, nor that of its children."""
        engine = PlainEngine(OVERLAP)
        root = engine.add("r")
        fed(engine, root, PROMISE, SYNC)
        fed(engine, root.children[0], *"abcd", EOS)
        second = root.children[1]
        fed(engine, second, *"xy")
        engine.sample(second, EOS)
        for number in which:
            engine.evict([root, *root.children][number])
        engine.driver.join_ready()
        assert positions_of(root) == EXPECTED

    def test_a_parent_that_has_lost_its_kv_after_a_join_keeps_them(self) -> None:
        """Its children go on from them."""
        engine = PlainEngine(OVERLAP)
        root = engine.add("r")
        fed(engine, root, PROMISE, SYNC)
        joined(engine, root, "abcd", "xy")
        fed(engine, root, PROMISE, SYNC)
        engine.evict(root)
        assert positions_of(root) == [*EXPECTED, 8, 9]
        joined(engine, root, "e", "f")
        # The sync token, both results, and what comes next.
        assert positions_of(root)[-4:] == [8, 8, 8, 9]

    def test_without_slots_for_a_join_they_are_the_same(self) -> None:
        """What is not injected is computed there."""
        engine = PlainEngine(OVERLAP)
        engine.has_slots = False
        root = engine.add("r")
        fed(engine, root, PROMISE, SYNC)
        joined(engine, root, "abcd", "xy")
        assert (positions_of(root), root.injected) == (EXPECTED, None)

    def test_a_sequence_that_ends_keeps_its_own(self) -> None:
        """It computes nothing of what its children give it."""
        engine = PlainEngine(OVERLAP)
        root = engine.add("r")
        fed(engine, root, PROMISE, EOS)
        joined(engine, root, "abcd", "xy")
        assert positions_of(root) == [*range(11)]


def closing(children: Sequence[ChildOutput]) -> Merged:
    """A join as protocols have it."""
    return [piece for child in children for piece in (child, "|")] + [",."]


AHEAD = dataclasses.replace(OVERLAP, children_per_promise=1, child_prefix_token_ids=(7,) * 5)
"""A child's prefix takes positions, and is not merged."""


class TestModelsLength:
    def test_a_sequence_ends_where_there_are_no_more_positions(self) -> None:
        """Its tokens would be fewer than the model takes."""
        engine = PlainEngine(AHEAD, max_len=16)
        root = engine.add("r")
        fed(engine, root, PROMISE, SYNC)
        joined(engine, root, "ab")
        # "p", "p", the promise and the sync, then "a" and "b" at 8 and 9.
        assert positions_of(root) == [0, 1, 2, 3, 8, 9, 10]
        fed(engine, root, *"zzzzzz")
        assert (root.phase, root.outcome, len(root.sequence.context)) == ("finished", "length", 12)
        engine.assert_empty()

    def test_a_promise_needs_a_position_for_a_child(self) -> None:
        """Otherwise it is an ordinary token."""
        engine = PlainEngine(AHEAD, max_len=17)
        root = engine.add("r")
        fed(engine, root, PROMISE, SYNC)
        joined(engine, root, "ab")
        fed(engine, root, PROMISE)
        # The promise has position 10, and the prefix 11 to 15.
        assert len(root.children) == 2
        fed(engine, root, PROMISE)
        assert (len(root.children), [*root.tree.limits_met]) == (2, ["max_model_len"])

    @pytest.mark.parametrize(
        ("length", "text", "num_cut"), [(14, "ab|,.", 0), (13, "ab|,.", 0), (12, "ab|,", 1), (10, "ab", 3)]
    )
    def test_a_merge_is_cut_to_positions(self, length: int, text: str, num_cut: int) -> None:
        """And a parent that is left without one ends."""
        engine = PlainEngine(AHEAD, max_len=length)
        root = engine.add("r")
        fed(engine, root, PROMISE, SYNC)
        (child,) = root.children
        assert child.handler is not None
        child.handler.join = closing  # type: ignore[method-assign]
        joined(engine, root, "ab")
        assert "".join(map(chr, root.sequence.output_token_ids[2:])) == text
        assert root.joins[0].num_cut == num_cut
        assert root.phase == ("live" if length == 14 else "finished")

    def test_a_caller_gives_no_more_than_has_positions(self) -> None:
        """They are fewer than the tokens that would fit."""
        engine = PlainEngine(dataclasses.replace(AHEAD, sync_resume="manual"), max_len=20)
        root = engine.add("r")
        fed(engine, root, PROMISE, SYNC)
        fed(engine, root.children[0], *"ab", EOS)
        engine.driver.resume("r", [])
        engine.driver.join_ready()
        fed(engine, root, SYNC)
        assert (len(root.sequence.context), engine.driver.room_to_resume(root)) == (7, 9)
