# SPDX-License-Identifier: Apache-2.0
"""The rules as functions: what a hook token does, who is ready, and what a join appends."""

from collections.abc import Sequence
from typing import Any

import pytest

import sequence_hooks.tree.merge as merge_module
from mytests.core.plain import HOOKS, LIMITS, PROMISE, SYNC, child, encode, handler
from sequence_hooks.config.limits import Limits
from sequence_hooks.handlers import Actions, Merged, Spawn, TokenEvent
from sequence_hooks.handlers.builtin import SyncHandler
from sequence_hooks.results import ChildOutput, Segment
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.rules import Decision, Effects, Refusal, Room, Standing, apply, decide, join


class Asks:
    """A handler that asks for whatever a test says."""

    def __init__(self, actions: Any, joined: Any = ()) -> None:
        self._actions, self._joined = actions, joined

    def on_token(self, event: TokenEvent) -> Actions:
        if isinstance(self._actions, BaseException):
            raise self._actions
        actions: Actions = self._actions
        return actions

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        if isinstance(self._joined, BaseException):
            raise self._joined
        joined: Merged = self._joined
        return joined


def event(depth: int = 0) -> TokenEvent:
    return TokenEvent(PROMISE, "r", (10, 11), (), depth, 0)


def standing(**changes: Any) -> Standing:
    """A root with room for nine tokens after the hook token, in a vocabulary of 100."""
    given = {"depth": 0, "num_unfinished_children": 0, "num_sampled_in_tree": 0, "limits": LIMITS, "num_context": 3}
    return Standing(**{**given, "room": 9, "vocab_size": 100, **changes})


TWO = Actions((Spawn((5,)), Spawn((6, 7))))


class TestDecide:
    def test_what_is_allowed_is_decided(self) -> None:
        """With the handler, which will join the children."""
        asks = Asks(TWO)
        assert decide(asks, event(), standing()) == Decision(PROMISE, asks, TWO)

    @pytest.mark.parametrize(
        "changes",
        [
            {"depth": 2},
            {"num_unfinished_children": 2},
            {"limits": Limits(True, 2, 3, max_tree_tokens=7), "num_sampled_in_tree": 7},
        ],
        ids=["depth", "children", "tokens-of-the-tree"],
    )
    def test_past_a_limit_a_token_is_an_ordinary_one(self, changes: dict[str, Any]) -> None:
        """As configured, so there is nothing to tell."""
        assert decide(Asks(TWO), event(), standing(**changes)) == Refusal()

    @pytest.mark.parametrize(
        "changes",
        [
            {"depth": 1},
            {"num_unfinished_children": 1},
            {"limits": Limits(True, 2, 3, max_tree_tokens=7), "num_sampled_in_tree": 6},
            {"room": 3},
        ],
    )
    def test_up_to_a_limit_it_is_not(self, changes: dict[str, Any]) -> None:
        """The limits themselves are allowed."""
        assert isinstance(decide(Asks(TWO), event(), standing(**changes)), Decision)

    def test_limits_are_for_spawns_alone(self) -> None:
        """A sync blocks whatever its depth."""
        sync = SyncHandler(HOOKS)
        assert decide(sync, event(), standing(depth=2, room=0)) == Decision(PROMISE, sync, Actions(block=True))

    def test_each_child_needs_room_for_a_token(self) -> None:
        """After its prefix."""
        assert decide(Asks(TWO), event(), standing(room=2)) == Refusal(lacks_room=True)

    @pytest.mark.parametrize(
        ("actions", "error"),
        [
            (RuntimeError("broken"), RuntimeError),
            (Actions((Spawn((100,)),)), ValueError),
            (Actions((Spawn((-1,)),)), ValueError),
            (Actions((Spawn((7.5,)),)), TypeError),  # type: ignore[arg-type]
            (Actions(("child",)), TypeError),  # type: ignore[arg-type]
            ("spawn", TypeError),
        ],
    )
    def test_a_fault_is_a_value(self, actions: Any, error: type[Exception]) -> None:
        """Whatever a handler raises or returns, the rules raise nothing."""
        refusal = decide(Asks(actions), event(), standing())
        assert isinstance(refusal, Refusal) and isinstance(refusal.error, error)

    def test_without_a_vocabulary_any_id_will_do(self) -> None:
        """Some engines don't know theirs."""
        assert isinstance(decide(Asks(Actions((Spawn((100,)),))), event(), standing(vocab_size=None)), Decision)


class TestApply:
    def test_children_are_numbered_per_parent(self) -> None:
        """In spawn order, after those that it has spawned before."""
        decision = Decision(PROMISE, Asks(TWO), TWO)
        children = apply(decision, "r", num_children=3, position=8, num_context=10).children
        assert [(plan.request_id, plan.number) for plan in children] == [("r_child_3", 3), ("r_child_4", 4)]
        assert [(plan.prefix_token_ids, plan.position) for plan in children] == [((5,), 8), ((6, 7), 8)]
        assert all(plan.handler is decision.handler for plan in children)

    @pytest.mark.parametrize(
        ("actions", "until"),
        [
            (Actions(), None),
            (Actions(block=True), "children"),
            (Actions(await_resume=True), "caller"),
            (Actions(block=True, await_resume=True), "caller"),
        ],
    )
    def test_a_sequence_blocks_until(self, actions: Actions, until: Any) -> None:
        """A caller who is awaited is awaited beside the children."""
        assert apply(Decision(SYNC, Asks(actions), actions), "r", 0, 1, 3) == Effects((), until)


class TestJoin:
    def test_results_stand_in_spawn_order(self) -> None:
        """And each output token is in one segment."""
        spawned_by = handler()
        children = [child("a", [20, 21], spawned_by), child("b", [30], spawned_by)]
        merge = join(children, (40,), Room(5, 9, 100), encode, None)
        assert merge.spans == (Span((20, 21), "a", range(2)), Span((30,), "b", range(1)), Span((40,)))
        assert merge.segments == (
            Segment(5, 7, "merged", "a"),
            Segment(7, 8, "merged", "b"),
            Segment(8, 9, "inserted"),
        )
        assert (merge.position, merge.num_merged, merge.num_cut, merge.num_context) == (5, 4, 0, 13)
        assert (merge.ends_at_length, merge.error) == (False, None)

    @pytest.mark.parametrize(("room", "kept", "ends"), [(0, 0, True), (2, 2, True), (3, 3, True), (4, 3, False)])
    def test_it_is_cut_to_the_room(self, room: int, kept: int, ends: bool) -> None:
        """A parent without room for another token ends."""
        merge = join([child("a", [20, 21, 22], handler())], (), Room(5, 9, room), encode, None)
        assert (merge.num_merged, merge.num_cut, merge.ends_at_length) == (kept, 3 - kept, ends)
        assert merge.num_context == 9 + kept
        assert [token for span in merge.spans for token in span.token_ids] == [20, 21, 22][:kept]

    def test_nothing_leaves_no_segment(self) -> None:
        """A child without a result brings none."""
        merge = join([child("a", [], handler())], (), Room(5, 9, 100), encode, None)
        assert (merge.spans, merge.segments, merge.num_merged) == ((), (), 0)

    def test_each_handler_joins_its_own(self) -> None:
        """Children of one handler that follow each other are joined together."""
        first, second = Asks(Actions(), "A"), Asks(Actions(), [66])
        children = [child("a", [1], first), child("b", [2], first), child("c", [3], second), child("d", [4], first)]
        merge = join(children, (), Room(0, 0, 100), encode, None)
        assert [list(span.token_ids) for span in merge.spans] == [[65], [66], [65]]

    @pytest.mark.parametrize(
        ("joined", "error"), [("ab", None), ([1, 2, 3], None), ([1, 2, 3, 4], "more than 3 pieces")]
    )
    def test_a_join_function_returns_so_many_pieces(
        self, joined: Any, error: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A text is one piece. More than any model has room for are a mistake."""
        monkeypatch.setattr(merge_module, "_MOST_PIECES", 3)
        merge = join([child("a", [1], Asks(Actions(), joined))], (), Room(0, 0, 100), encode, None)
        assert merge.num_merged == (0 if error else len(joined))
        assert (merge.error or "") == (f"ValueError: a join function returns {error}" if error else "")

    def test_a_text_is_encoded_once(self) -> None:
        """However often a join function repeats it."""
        encoded: list[str] = []

        def encode_noted(text: str) -> list[int]:
            encoded.append(text)
            return [len(text)]

        merge = join([child("a", [1], Asks(Actions(), ["x", "yy", "x"]))], (), Room(0, 0, 9), encode_noted, None)
        assert ([list(span.token_ids) for span in merge.spans], encoded) == ([[1], [2], [1]], ["x", "yy"])

    def test_a_fault_costs_its_own_children_alone(self) -> None:
        """The first of several is told."""
        good, bad, worse = Asks(Actions(), "A"), Asks(Actions(), KeyError("k")), Asks(Actions(), [1000])
        children = [child("a", [1], bad), child("b", [2], good), child("c", [3], worse)]
        merge = join(children, (), Room(0, 0, 100), encode, vocab_size=100)
        assert [list(span.token_ids) for span in merge.spans] == [[65]]
        assert merge.error == "KeyError: 'k'"
