# SPDX-License-Identifier: Apache-2.0
"""The rules as functions: what a hook token does, who is ready, and what a join appends."""

from dataclasses import replace
from typing import Any

import pytest

import sequence_hooks.tree.merge as merge_module
from mytests.harness.plain import (
    HOOKS,
    LIMITS,
    PROMISE,
    Asks,
    PlainSequence,
    Trees,
    branch_with,
    child_of,
    decided,
    handler,
    merged,
    spec,
)
from sequence_hooks.handlers import Actions, Spawn, TokenEvent, TokenHandler, UnjoinedChild
from sequence_hooks.handlers.builtin import SyncHandler
from sequence_hooks.handlers.triggers import TriggerMatch
from sequence_hooks.results import Segment
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.rules import Decision, Refusal, decide, has_room, join, joined, keeps_kv, needs_kv
from sequence_hooks.tree.sequence import Outcome
from sequence_hooks.tree.wait import ALL, Wait


def specs_of(asks: TokenHandler, branch: Branch[PlainSequence] | None = None, **fields: Any) -> list[Any]:
    """The children that are decided on."""
    decision = decided(asks, branch, **fields)
    assert isinstance(decision, Decision)
    return [spec for spec, _ in decision.children]


TWO = Actions((Spawn((5,), {"max_tokens": 3}), Spawn((6, 7))))
FEW_SEQUENCES = replace(LIMITS, max_tree_sequences=5)
FEW_TOKENS = replace(LIMITS, max_tree_tokens=7)


class TestDecide:
    def test_what_is_allowed_is_decided(self) -> None:
        """With the handler, which will join the children, and what it gives each."""
        asks = Asks(TWO)
        assert decided(asks) == Decision(
            PROMISE,
            asks,
            (
                (spec(0, prefix_token_ids=(5,)), {"max_tokens": 3}),
                (spec(1, prefix_token_ids=(6, 7)), None),
            ),
            None,
        )

    def test_its_event_has_the_tokens_before_it(self) -> None:
        """Whether or not it is in the output already."""
        seen: list[TokenEvent] = []

        class Looks(Asks):
            def on_token(self, event: TokenEvent) -> Actions:
                seen.append(event)
                return super().on_token(event)

        branch = branch_with(depth=1, num_children=2)
        branch.sequence.output_token_ids += [20, 21, PROMISE]
        asks = Looks(Actions())
        decide(branch, PROMISE, TriggerMatch(asks, 2), branch.sequence.output_token_ids[:2], 20, None)
        assert seen == [
            TokenEvent(
                PROMISE, "r_child_0", (10, 11), (20, 21), 1, 2, 2, 2, tuple(UnjoinedChild(each, 1) for each in (0, 1))
            )
        ]

    @pytest.mark.parametrize(
        ("state", "limit"),
        [
            ({"depth": 2}, "max_child_depth"),
            ({"num_children": 2}, "max_children"),
            ({"depth": 1, "num_children": 2, "limits": replace(FEW_SEQUENCES, max_children=9)}, "max_tree_sequences"),
        ],
    )
    def test_past_a_limit_a_token_is_an_ordinary_one(self, state: dict[str, Any], limit: Any) -> None:
        """And it is known which limit has refused it."""
        assert decided(Asks(TWO), branch_with(**state)) == Refusal(limit)

    @pytest.mark.parametrize(
        "state",
        [{"depth": 1}, {"num_children": 1}, {"depth": 1, "num_children": 1, "limits": FEW_SEQUENCES}, {"room": 3}],
    )
    def test_up_to_a_limit_it_is_not(self, state: dict[str, Any]) -> None:
        """The limits themselves are allowed."""
        room = state.get("room", 9)
        branch = branch_with(**{name: value for name, value in state.items() if name != "room"})
        assert isinstance(decided(Asks(TWO), branch, room), Decision)

    def test_limits_are_for_spawns_alone(self) -> None:
        """A sync blocks whatever its depth."""
        sync = SyncHandler(HOOKS)
        assert decided(sync, branch_with(depth=2), room=0) == Decision(PROMISE, sync, (), ALL)

    def test_each_child_needs_room_for_a_token(self) -> None:
        """After its prefix."""
        assert decided(Asks(TWO), room=2) == Refusal("max_model_len")

    @pytest.mark.parametrize(
        ("actions", "error"),
        [
            (RuntimeError("broken"), RuntimeError),
            (Actions((Spawn((100,)),)), ValueError),
            (Actions((Spawn((-1,)),)), ValueError),
            (Actions((Spawn((7.5,)),)), TypeError),  # type: ignore[arg-type]
            (Actions(("child",)), TypeError),  # type: ignore[arg-type]
            (Actions((Spawn((), context="none"),)), ValueError),
            ("spawn", TypeError),
        ],
    )
    def test_a_fault_is_a_value(self, actions: Any, error: type[Exception]) -> None:
        """Whatever a handler raises or returns, the rules raise nothing."""
        refusal = decided(Asks(actions))
        assert isinstance(refusal, Refusal) and isinstance(refusal.error, error)
        assert refusal.reason == "failed"

    def test_a_block_that_is_malformed_is_refused(self) -> None:
        """One of which a part is, spawns the rest; one that blocks, blocks."""
        assert decided(Asks(Actions(is_malformed=True))) == Refusal("malformed")
        rest = decided(Asks(Actions((Spawn((5,)),), is_malformed=True)))
        assert isinstance(rest, Decision) and rest.is_malformed and len(rest.children) == 1
        blocks = decided(Asks(Actions(block=True, is_malformed=True)))
        assert isinstance(blocks, Decision) and (blocks.is_malformed, blocks.waits_for) == (True, ALL)

    def test_without_a_vocabulary_any_id_will_do(self) -> None:
        """Some engines don't know theirs."""
        assert isinstance(decided(Asks(Actions((Spawn((100,)),))), vocab_size=None), Decision)

    @pytest.mark.rule(1)
    def test_children_are_numbered_per_parent(self) -> None:
        """In spawn order, after those that it has spawned before."""
        specs = specs_of(Asks(TWO), branch_with(depth=1, num_children=1, num_sampled=7))
        assert [(each.request_id, each.number) for each in specs] == [
            ("r_child_0_child_1", 1),
            ("r_child_0_child_2", 2),
        ]
        assert {(each.parent_id, each.position) for each in specs} == {("r_child_0", 8)}

    @pytest.mark.parametrize(("context", "num_shared"), [("parent", 10), ("before_trigger", 8), ("none", 0)])
    def test_a_child_shares_what_its_context_says(self, context: Any, num_shared: int) -> None:
        """The trigger is the last two of ten tokens. Its prompt is what it shares, and its prefix."""
        asks = Asks(Actions((Spawn((5,), context=context, is_detached=True),)))
        (only,) = specs_of(asks, branch_with(num_sampled=7), num_trigger=2)
        assert (only.context, only.num_shared, only.num_trigger_tokens) == (context, num_shared, 2)
        assert (only.num_prompt_tokens, only.is_detached) == (num_shared + 1, True)

    @pytest.mark.parametrize(
        ("actions", "waits_for"),
        [
            (Actions(), None),
            (Actions(block=True), ALL),
            (Actions(await_resume=True), Wait("caller")),
            (Actions(block=True, await_resume=True), Wait("caller")),
            (Actions(block=True, join_when=3), Wait(join_when=3)),
            (Actions(block=True, wait_for=()), Wait(numbers=())),
        ],
    )
    def test_a_sequence_waits_for(self, actions: Actions, waits_for: Any) -> None:
        """A caller who is awaited is awaited beside the children."""
        asks = Asks(actions)
        assert decided(asks) == Decision(PROMISE, asks, (), waits_for)


def parent_of(
    *children: tuple[str, list[int], TokenHandler], given: tuple[int, ...] = (), num_output: int = 5
) -> Branch[PlainSequence]:
    """A parent whose children have these names, results and handlers; it has been given tokens by a caller."""
    trees = Trees()
    root = trees.add_root(PlainSequence(prompt_token_ids=[10] * 4, output_token_ids=[20] * num_output), LIMITS)
    for number, (name, result, spawned_by) in enumerate(children):
        sequence = PlainSequence(name, output_token_ids=result, outcome="length")
        assert trees.end(trees.spawn(root, spec(number), spawned_by, sequence))
    trees.block(root, Wait("caller"))
    trees.resume(root, given)
    return root


class TestWaits:
    """Which children a sequence waits for, and which of their results it gets."""

    @pytest.mark.rule(17)
    @pytest.mark.parametrize("numbers", [(0,), (1, 0), (2, 3), (3, 3)])
    def test_it_may_name_children_that_it_has_or_spawns(self, numbers: tuple[int, ...]) -> None:
        """Two are unjoined, and two more are spawned; each counts once."""
        branch = branch_with(num_children=2, limits=replace(LIMITS, max_children=9))
        decision = decided(Asks(replace(TWO, block=True, wait_for=numbers)), branch)
        assert isinstance(decision, Decision) and decision.waits_for is not None
        assert decision.waits_for.numbers == tuple(sorted(set(numbers)))

    @pytest.mark.parametrize("numbers", [(1,), (2,), (-1,), (0, 4), (9, 9)])
    def test_no_other(self, numbers: tuple[int, ...]) -> None:
        """Child 1 is joined already, and number 2 would be detached."""
        trees = Trees()
        branch = trees.add_root(PlainSequence(), replace(LIMITS, max_children=9))
        _, second = child_of(trees, branch, handler()), child_of(trees, branch, handler(), [3])
        trees.block(branch, Wait(numbers=(1,)))
        second.sequence.outcome = "stopped"
        trees.end(second, range(0))
        trees.join(branch, [second], merged(branch), num_prefill=1, num_injected=0)
        asks = Asks(Actions((Spawn((5,), is_detached=True),), block=True, wait_for=numbers))
        assert decided(asks, branch) == Refusal("wait_for")

    @pytest.mark.rule(18)
    @pytest.mark.parametrize(
        ("wait", "outcomes", "num_awaited", "numbers"),
        [
            (ALL, ("stopped", "length", "failed"), 0, [0, 1, 2]),
            (Wait(numbers=(1,)), (None, "stopped", None), 0, [1]),
            (Wait(numbers=()), (None, None, None), 0, []),
            (Wait(join_when=1), (None, None, None), 1, []),
            (Wait(join_when=2), (None, "stopped", None), 1, [1]),
            (Wait(join_when=1), (None, "stopped", "stopped"), 0, [1]),
            (Wait(join_when=2), ("stopped", None, "length"), 0, [0, 2]),
            # A failed child counts only if there is no other.
            (Wait(join_when=1), ("failed", None, None), 1, [0]),
            (Wait(join_when=1), ("failed", "failed", "stopped"), 0, [2]),
            (Wait(join_when=2), ("failed", "failed", "stopped"), 0, [0, 2]),
            (Wait(join_when=9), ("stopped", "stopped", None), 1, [0, 1]),
            (Wait(join_when=9), ("stopped", "stopped", "failed"), 0, [0, 1, 2]),
            (Wait(numbers=(0, 2), join_when=1), (None, "stopped", "stopped"), 0, [2]),
        ],
    )
    def test_who_is_awaited_and_who_is_joined(
        self, wait: Wait, outcomes: tuple[Outcome | None, ...], num_awaited: int, numbers: list[int]
    ) -> None:
        """Of three children."""
        trees = Trees()
        root = trees.add_root(PlainSequence(output_token_ids=[1]), LIMITS)
        children = [child_of(trees, root, handler(), [20, 3]) for _ in outcomes]
        trees.block(root, wait)
        for child, outcome in zip(children, outcomes, strict=True):
            if outcome == "failed":
                trees.abort(child)
            elif outcome is not None:
                child.sequence.outcome = outcome
                trees.end(child, range(1, 2))
        assert root.num_awaited == num_awaited
        assert [child.number for child in joined(root)] == numbers

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"wait_for": (0,)}, "Actions.wait_for is (0,), and nothing waits; set block=True"),
            ({"join_when": 1}, "Actions.join_when is 1, and nothing waits; set block=True"),
            ({"block": True, "wait_for": (0,), "replace_from": 0}, "Actions.wait_for is (0,), and replace_from 0: "),
            ({"block": True, "join_when": 0}, "Actions.join_when is 0; give an integer of at least 1"),
            ({"block": True, "join_when": True}, "Actions.join_when has True; give integers"),
            ({"block": True, "wait_for": (False,)}, "Actions.wait_for has False; give integers"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, fields: dict[str, Any], message: str) -> None:
        """The token is an ordinary one, and the error says how to ask for it."""
        refusal = decided(Asks(Actions(**fields)))
        assert isinstance(refusal, Refusal) and message in str(refusal.error)


class TestJoin:
    @pytest.mark.rule(10)
    def test_results_stand_in_spawn_order(self) -> None:
        """And each output token is in one segment."""
        spawned_by = handler()
        merge = merged(parent_of(("a", [20, 21], spawned_by), ("b", [30], spawned_by), given=(40,)))
        assert merge.spans == (Span((20, 21), "a", [0, 1]), Span((30,), "b", [0]), Span((40,)))
        assert merge.segments == (
            Segment(5, 7, "merged", "a"),
            Segment(7, 8, "merged", "b"),
            Segment(8, 9, "inserted"),
        )
        assert (merge.position, merge.num_merged, merge.num_cut, merge.num_context) == (5, 4, 0, 13)
        assert (merge.outcome, merge.error) == (None, None)

    def test_a_tree_that_has_used_up_its_tokens_goes_on_nowhere(self) -> None:
        """Whatever room the model's length has; all results are merged."""
        parent = parent_of(("a", [20, 21], handler()))
        parent.tree.limits = FEW_TOKENS
        for branch, may_go_on in zip(parent.subtree(), (True, False), strict=True):
            branch.count_sampled()
            assert has_room(branch, 0, 100) == may_go_on
        merge = merged(parent)
        assert (merge.num_merged, merge.num_cut, merge.outcome) == (2, 0, "length")

    @pytest.mark.rule(20)
    @pytest.mark.parametrize(("room", "outcome"), [(50, "stopped"), (2, "length")])
    def test_a_request_may_end_with_it(self, room: int, outcome: str) -> None:
        """As it asks; not where no child is joined, and without room with its length."""
        parent = parent_of(("a", [20, 21], handler()))
        parent.tree.limits = replace(parent.tree.limits, end_at_join=True)
        assert merged(parent, room).outcome == outcome
        alone = parent_of(given=(40,))
        alone.tree.limits = parent.tree.limits
        assert merged(alone).outcome is None

    @pytest.mark.parametrize(("room", "kept", "ends"), [(0, 0, True), (2, 2, True), (3, 3, True), (4, 3, False)])
    def test_it_is_cut_to_the_room(self, room: int, kept: int, ends: bool) -> None:
        """A parent without room for another token ends."""
        merge = merged(parent_of(("a", [20, 21, 22], handler())), room)
        assert (merge.num_merged, merge.num_cut, merge.outcome) == (kept, 3 - kept, "length" if ends else None)
        assert merge.num_context == 9 + kept
        assert [token for span in merge.spans for token in span.token_ids] == [20, 21, 22][:kept]

    def test_nothing_leaves_no_segment(self) -> None:
        """A child without a result brings none."""
        merge = merged(parent_of(("a", [], handler())))
        assert (merge.spans, merge.segments, merge.num_merged) == ((), (), 0)

    def test_each_handler_joins_its_own(self) -> None:
        """Children of one handler that follow each other are joined together."""
        first, second = Asks(Actions(), "A"), Asks(Actions(), [66])
        handlers = [first, first, second, first]
        merge = merged(parent_of(*((name, [1], each) for name, each in zip("abcd", handlers, strict=True))))
        assert [list(span.token_ids) for span in merge.spans] == [[65], [66], [65]]

    @pytest.mark.parametrize(
        ("joined", "error"), [("ab", None), ([1, 2, 3], None), ([1, 2, 3, 4], "more than 3 pieces")]
    )
    def test_a_join_function_returns_so_many_pieces(
        self, joined: Any, error: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A text is one piece. More than any model has room for are a mistake."""
        monkeypatch.setattr(merge_module, "_MAX_PIECES", 3)
        merge = merged(parent_of(("a", [1], Asks(Actions(), joined))))
        assert merge.num_merged == (0 if error else len(joined))
        assert (merge.error or "") == (f"ValueError: a join function returns {error}" if error else "")

    @pytest.mark.rule(4)
    def test_a_text_is_encoded_once(self) -> None:
        """However often a join function repeats it; adjacent texts are one, the last of which may be apart."""
        encoded: list[str] = []

        def encode_noted(text: str) -> list[int]:
            encoded.append(text)
            return [len(text)]

        parent = parent_of(("a", [1], Asks(Actions(), ["x", 7, "y", "", "y", 7, "x"])))
        merge = join(parent, joined(parent), 100, encode_noted, None)
        assert [list(span.token_ids) for span in merge.spans] == [[1], [7], [2], [7], [1]]
        assert encoded == ["x", "yy", "y"]

    def test_the_last_of_adjacent_texts_is_apart(self) -> None:
        """Where results overlap, it has a place of its own. Unless a token has parts of both."""
        parent = parent_of(("a", [1], Asks(Actions(), ["ab", "c", "de"])))
        one_each = join(parent, joined(parent), 100, lambda text: [ord(letter) for letter in text], None)
        assert ["".join(map(chr, span.token_ids)) for span in one_each.spans] == ["abc", "de"]
        pairs = join(
            parent, joined(parent), 100, lambda text: [len(text[at : at + 2]) for at in range(0, len(text), 2)], None
        )
        assert [list(span.token_ids) for span in pairs.spans] == [[2, 2, 1]]

    def test_a_fault_costs_its_own_children_alone(self) -> None:
        """The first of several is told."""
        good, bad, worse = Asks(Actions(), "A"), Asks(Actions(), KeyError("k")), Asks(Actions(), [1000])
        merge = merged(parent_of(("a", [1], bad), ("b", [2], good), ("c", [3], worse)), vocab_size=100)
        assert [list(span.token_ids) for span in merge.spans] == [[65]]
        assert merge.error == "KeyError: 'k'"


def ended_child(outcome: Outcome = "stopped", **fields: Any) -> Branch[PlainSequence]:
    """A child that ends while its parent goes on, before its tree has learned of it."""
    trees = Trees()
    root = trees.add_root(PlainSequence(output_token_ids=[PROMISE]), LIMITS)
    child = child_of(trees, root, handler(), [20], **fields)
    child.sequence.outcome = outcome
    return child


class TestKeptKV:
    """Of a child that ends, until it is copied to its parent."""

    def test_a_child_may_end_without_a_join(self) -> None:
        """With its tree's tokens used up, before it had any children."""
        child = ended_child("length")
        child.finished_at_join = True
        assert keeps_kv(child) and not child.joins

    @pytest.mark.parametrize("outcome", ["stopped", "length"])
    def test_a_childs_is_kept_for_its_parent(self, outcome: Outcome) -> None:
        """Whatever ended it, if it has a result."""
        assert keeps_kv(ended_child(outcome))

    def test_not_that_of_a_failed_or_an_aborted_child(self) -> None:
        """They have no result, whichever of both learns of it first: the engine's sequence or the tree."""
        aborted = ended_child("failed")
        assert not keeps_kv(aborted)
        Trees().abort(aborted)
        assert not keeps_kv(aborted)

    @pytest.mark.parametrize("fields", [{"is_detached": True}, {"context": "before_trigger"}, {"context": "none"}])
    def test_not_that_of_a_child_whose_parent_could_not_use_it(self, fields: dict[str, Any]) -> None:
        """Its parent gets no result of a detached child, and another context has other KV."""
        assert not keeps_kv(ended_child(**fields))

    def test_not_that_of_a_root(self) -> None:
        """Nor of a child that goes on."""
        child = ended_child()
        assert child.parent is not None
        child.parent.sequence.outcome, child.sequence.outcome = "stopped", None
        assert (keeps_kv(child.parent), keeps_kv(child)) == (False, False)

    def test_not_if_its_parent_has_ended(self) -> None:
        """It is joined with nothing to compute, whichever of both learns of its end first."""
        child = ended_child()
        assert child.parent is not None
        child.parent.sequence.outcome = "stopped"
        assert not keeps_kv(child)
        Trees().end(child.parent, range(1))
        child.parent.sequence.outcome = None
        assert (child.parent.phase, keeps_kv(child)) == ("blocked", False)

    def test_until_its_parent_needs_it_no_longer(self) -> None:
        """What is kept of a child stays while its siblings are joined."""
        child = ended_child()
        assert (child.parent is not None) and needs_kv(child)
        child.parent.settle([child])
        assert not needs_kv(child)
        other = ended_child()
        assert other.parent is not None
        other.parent.outcome = "stopped"
        assert not needs_kv(other)

    @pytest.mark.parametrize("num_computed", [0, 3])
    def test_not_if_its_blocked_parent_has_lost_its_own(self, num_computed: int) -> None:
        """It prefills its whole context, and its children's results with it."""
        child = ended_child()
        assert child.parent is not None
        Trees().block(child.parent, ALL)
        child.parent.sequence.num_computed_tokens = num_computed
        assert keeps_kv(child) == bool(num_computed)

    @pytest.mark.parametrize("named", [0, 7])
    def test_of_a_child_that_nobody_waits_for_now(self, named: int) -> None:
        """At its join its parent will have its own again, whose KV is lost now."""
        child = ended_child()
        assert child.parent is not None
        Trees().block(child.parent, Wait(numbers=(named,)))
        assert keeps_kv(child) == (named != child.number)
