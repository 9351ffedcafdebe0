# SPDX-License-Identifier: Apache-2.0
"""The rules as functions: what a hook token does, who is ready, and what a join appends."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import sequence_hooks.tree.merge as merge_module
from mytests.harness.plain import (
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
from sequence_hooks.handlers import Actions, Spawn, TokenHandler
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.replacement import NO_REPLACEMENT, Replacement
from sequence_hooks.tree.rules import Decision, Refusal, join, joined, keeps_kv, needs_kv
from sequence_hooks.tree.sequence import Outcome
from sequence_hooks.tree.wait import ALL, Wait

TWO = Actions((Spawn((5,), {"max_tokens": 3}), Spawn((6, 7))))


class TestDecide:
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


def parent_of(*children: tuple[str, list[int], TokenHandler]) -> Branch[PlainSequence]:
    """A parent whose children have these names, results and handlers; its caller has given it no tokens."""
    trees = Trees()
    root = trees.add_root(PlainSequence(prompt_token_ids=[10] * 4, output_token_ids=[20] * 5), LIMITS)
    for number, (name, result, spawned_by) in enumerate(children):
        sequence = PlainSequence(name, output_token_ids=result, outcome="length")
        assert trees.end(trees.spawn(root, spec(number), spawned_by, sequence))
    trees.block(root, Wait("caller"))
    trees.resume(root, ())
    return root


class TestWaits:
    """Which children a sequence waits for, and which of their results it gets."""

    @pytest.mark.rule(17)
    @pytest.mark.parametrize("numbers", [(0,), (1, 0), (2, 3), (3, 3)])
    @pytest.mark.parametrize("kind", ["block", "await_resume"])
    def test_it_may_name_children_that_it_has_or_spawns(self, kind: str, numbers: tuple[int, ...]) -> None:
        """Two are unjoined, and two more are spawned; each counts once. It may want the first result alone."""
        branch = branch_with(num_children=2, limits=replace(LIMITS, max_children=9))
        waits: Any = {kind: True, "wait_for": numbers, "join_when": 1}
        decision = decided(Asks(replace(TWO, **waits)), branch)
        assert isinstance(decision, Decision) and decision.waits_for is not None
        assert decision.waits_for.numbers == tuple(sorted(set(numbers)))
        assert decision.waits_for.join_when == 1

    @pytest.mark.parametrize("numbers", [(1,), (2,), (-1,), (0, 4), (9, 9)])
    def test_no_other(self, numbers: tuple[int, ...]) -> None:
        """Child 1 is joined already, and number 2 would be detached."""
        trees = Trees()
        branch = trees.add_root(PlainSequence(), replace(LIMITS, max_children=9))
        _, second = child_of(trees, branch, handler()), child_of(trees, branch, handler(), [3])
        trees.block(branch, Wait(numbers=(1,)))
        second.sequence.outcome = "stopped"
        trees.end(second, range(0))
        trees.join(branch, [second], merged(branch), num_prefill=1)
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
    def test_nothing_leaves_no_segment(self) -> None:
        """A child without a result brings none."""
        merge = merged(parent_of(("a", [], handler())))
        assert (merge.spans, merge.segments, merge.num_merged) == ((), (), 0)

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


def block_by_name(child: Any, number: int) -> None:
    Trees().block(child.parent, Wait(numbers=(number,)))


def end_parent(child: Any) -> None:
    """Its parent waits at its end."""
    child.parent.sequence.outcome = "stopped"
    Trees().end(child.parent, range(1))
    child.parent.sequence.outcome = None


def block_with_kv(child: Any, replacement: Replacement = NO_REPLACEMENT) -> None:
    child.parent.sequence.num_computed_tokens = 3
    Trees().block(child.parent, ALL, replacement)


ENDED: dict[str, tuple[Callable[[Any], object], bool]] = {
    "has stopped": (lambda child: None, True),
    "ended by length": (lambda child: setattr(child.sequence, "outcome", "length"), True),
    "ended with the tokens of its tree": (lambda child: setattr(child, "finished_at_join", True), True),
    "goes on": (lambda child: setattr(child.sequence, "outcome", None), False),
    "was aborted": (lambda child: setattr(child.sequence, "outcome", "failed"), False),
    "has a parent that ends": (lambda child: setattr(child.parent.sequence, "outcome", "stopped"), False),
    "has a parent that waits at its end": (end_parent, False),
    "has a BLOCKED parent": (block_with_kv, True),
    # What that gets is prefilled.
    "has a parent that replaces": (lambda child: block_with_kv(child, Replacement(2)), False),
    # It prefills its whole context, and its children's results with it.
    "has a BLOCKED parent that has lost its own": (lambda child: Trees().block(child.parent, ALL), False),
    "is named by such a parent": (lambda child: block_by_name(child, 0), False),
    # At its join its parent will have its own again.
    "is not named by such a parent": (lambda child: block_by_name(child, 7), True),
}


def ended_child() -> Any:
    """A child that ends while its parent goes on, before its tree has learned of it."""
    trees = Trees()
    child = child_of(trees, trees.add_root(PlainSequence(output_token_ids=[PROMISE]), LIMITS), handler(), [20])
    child.sequence.outcome = "stopped"
    return child


@pytest.mark.parametrize(("change", "is_kept"), ENDED.values(), ids=ENDED)
def test_a_childs_kv_is_kept_for_its_parent(change: Callable[[Any], object], is_kept: bool) -> None:
    """If it has a result that its parent can use; that of a root never is."""
    child = ended_child()
    change(child)
    assert keeps_kv(child) is is_kept
    child.parent.sequence.outcome = "stopped"
    assert not keeps_kv(child.parent)


def test_it_is_kept_until_its_parent_needs_it_no_longer() -> None:
    """What is kept of a child stays while its siblings are joined."""
    child, other = ended_child(), ended_child()
    assert needs_kv(child)
    child.parent.settle([child])
    other.parent.outcome = "stopped"
    assert (needs_kv(child), needs_kv(other)) == (False, False)
