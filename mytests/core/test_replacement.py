# SPDX-License-Identifier: Apache-2.0
"""Joins that replace the end of a context, as the rules and the driver see them, on an engine of lists."""

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from mytests.harness.asking import Asks, branch_with, decided
from mytests.harness.characters import EOS, PROMISE, SYNC, ids
from mytests.harness.plain import PlainSequence, Trees, child_of, encode, end, handler, merged
from mytests.harness.plain_engine import PlainBranch, PlainEngine, fed
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.handlers import Actions, Merged, Spawn, TokenEvent
from sequence_hooks.results import ChildOutput, Origin, Segment
from sequence_hooks.tree.assembly import Assembler, segments_of
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.positions import PLAIN, ChildPositions
from sequence_hooks.tree.replacement import NO_REPLACEMENT, Replacement, continued, with_replaced
from sequence_hooks.tree.rules import Decision, Refusal, joined, keeps_kv
from sequence_hooks.tree.wait import ALL


class Replaces:
    """Replaces what a test says."""

    start: int = 0
    inserts: tuple[int, ...] = ()
    seen: list[TokenEvent] = []

    def __init__(self, tokenizer: object) -> None: ...

    def on_token(self, event: TokenEvent) -> Actions:
        self.seen.append(event)
        return Actions(block=True, replace_from=self.start, insert_token_ids=self.inserts)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return ()


HOOKS = SpecialKwargs(promise_token_id=PROMISE, handlers={SYNC: f"{__name__}.Replaces"}, block_on="sync")


def replacing(start: int, inserts: str = "", **hooks: Any) -> PlainEngine:
    """An engine whose sync token replaces the context from ``start`` on."""
    Replaces.start, Replaces.inserts = start, tuple(ids(inserts))
    Replaces.seen.clear()
    return PlainEngine(dataclasses.replace(HOOKS, **hooks))


def text_of(token_ids: Sequence[int]) -> str:
    """Tokens as `mytests.harness.characters.plan` writes them."""
    return "".join({PROMISE: "!", SYNC: ".", EOS: "$"}.get(each, chr(each)) for each in token_ids)


class TestDecide:
    def test_a_replacement_counts_the_context(self) -> None:
        """Of a context of two tokens of prompt and four of output, the first of these stays."""
        decision = decided(Asks(Actions(block=True, replace_from=1, insert_token_ids=(7,))), branch_with(num_sampled=3))
        assert isinstance(decision, Decision)
        assert decision.replacement == Replacement(3, (7,))

    @pytest.mark.parametrize(
        ("actions", "message"),
        [
            (
                Actions(block=True, replace_from=-1),
                "replace_from is -1; give an index from 0, .*, to 3, the",
            ),
            (Actions(block=True, replace_from=4), "replace_from is 4; give an index"),
            (Actions(block=True, replace_from="1"), "replace_from is '1'; give an index .*, or None"),  # type: ignore[arg-type]
            (Actions(replace_from=1), "replace_from is 1, and the sequence is not BLOCKED.*set block"),
            (Actions(insert_token_ids=(5,)), r"insert_token_ids is \(5,\), and the sequence is not BLOCKED.*set block"),
            (Actions(block=True, insert_token_ids=(100,)), "token id 100 is not in the model's vocabulary"),
        ],
    )
    def test_what_cannot_be_replaced_is_refused(self, actions: Actions, message: str) -> None:
        """The token is an ordinary one, and the error names the field, the value and the way out."""
        refusal = decided(Asks(actions), branch_with(num_sampled=3))
        assert isinstance(refusal, Refusal) and refusal.error is not None
        with pytest.raises((TypeError, ValueError), match=message):
            raise refusal.error

    def test_an_endless_insertion_is_read_no_further_than_the_model_reaches(self) -> None:
        """What does not fit is cut by the join."""
        decision = decided(Asks(Actions(block=True, insert_token_ids=iter(lambda: 5, 6))))  # type: ignore[arg-type]
        assert isinstance(decision, Decision)
        assert len(decision.replacement.token_ids) == 13


class TestSegments:
    @pytest.mark.parametrize(
        ("num_tokens", "replaced"),
        [
            (1, [Segment(8, 9, "sampled", is_replaced=True)]),
            (3, [Segment(6, 7, "merged", "c", True), Segment(7, 9, "sampled", is_replaced=True)]),
            (0, []),
        ],
    )
    def test_each_keeps_its_origin(self, num_tokens: int, replaced: list[Segment]) -> None:
        """A segment that is cut within becomes two."""
        segments = [Segment(0, 4, "sampled"), Segment(4, 7, "merged", "c"), Segment(7, 9, "sampled")]
        found = with_replaced(segments, num_tokens)
        assert [each for each in found if each.is_replaced] == replaced
        assert [(a.end, b.start) for a, b in pairwise(found) if a.end != b.start] == []
        assert (found[0].start, found[-1].end) == (0, 9)

    def test_what_was_replaced_before_does_not_count(self) -> None:
        """It is not in the context any more."""
        segments = [Segment(0, 4, "sampled"), Segment(4, 7, "sampled", None, True), Segment(7, 9, "sampled")]
        found = with_replaced(segments, 3)
        assert [each.start for each in found if each.is_replaced] == [3, 4, 7]


class TestJoin:
    def test_the_context_is_cut_and_the_output_grows(self) -> None:
        """What is inserted comes in the place of what was replaced, and the sequence goes on after it."""
        engine = replacing(1, "yz")
        root = engine.add("r")
        fed(engine, root, "a", "b", SYNC, "c", EOS)
        assert text_of(root.sequence.context) == "ppayzc$"
        assert text_of(root.sequence.output_token_ids) == "ab.yzc$"
        assert [(each.start, each.end, each.origin, each.is_replaced) for each in root.segments] == [
            *((0, 1, "sampled", False), (1, 3, "sampled", True)),
            *((3, 5, "inserted", False), (5, 7, "sampled", False)),
        ]
        (join,) = root.joins
        assert (join.position, join.num_merged, join.num_replaced) == (3, 2, 2)
        assert (join.num_context, join.num_prefill) == (5, 2)
        assert (root.num_sampled, root.num_context) == (5, 7)
        assert text_of(root.output_in_context) == "ayzc$"
        engine.assert_empty()

    def test_its_children_are_joined_after_what_it_inserts(self) -> None:
        """And their contexts have what was there when they were spawned."""
        engine = replacing(0, "y", merge_separator="")
        root = engine.add("r")
        fed(engine, root, "a", PROMISE, SYNC)
        (child,) = root.children
        fed(engine, child, "c", EOS)
        fed(engine, root, "b", EOS)
        assert text_of(child.sequence.context) == "ppa!c$"
        assert text_of(root.sequence.context) == "ppycb$"
        assert text_of(root.sequence.output_token_ids) == "a!.ycb$"
        engine.assert_empty()

    def test_positions_of_children_count_the_output(self) -> None:
        """One that is spawned later shares the context, and stands where the caller sees its promise."""
        engine = replacing(0, "y")
        root = engine.add("r")
        fed(engine, root, "a", "b", SYNC, PROMISE)
        (child,) = root.children
        assert child.spec is not None
        assert (child.spec.position, child.spec.num_shared) == (5, 4)
        assert text_of(child.sequence.prompt_token_ids) == "ppy!"
        engine.abort(root)
        engine.assert_empty()

    def test_a_handler_sees_the_context(self) -> None:
        """What is replaced is not in its event, and its index counts what is left."""
        engine = replacing(1, "y")
        root = engine.add("r")
        fed(engine, root, "a", "b", SYNC, "c", SYNC)
        assert [text_of(event.output_token_ids) for event in Replaces.seen] == ["ab", "ayc"]
        engine.abort(root)

    def test_a_second_one_replaces_what_the_first_has_inserted(self) -> None:
        """What is merged and replaced keeps its origin, and is counted once."""
        engine = replacing(0, "y")
        root = engine.add("r")
        fed(engine, root, "a", SYNC, "b", SYNC, EOS)
        assert text_of(root.sequence.context) == "ppy$"
        assert [each.is_replaced for each in root.segments] == [True, True, True, False, False]
        assert [each.origin for each in root.segments] == ["sampled", "inserted", "sampled", "inserted", "sampled"]
        assert (root.num_sampled, root.sampled_token_ids) == (5, [*ids("a"), SYNC, *ids("b"), SYNC, EOS])
        engine.assert_empty()

    def test_it_makes_room(self) -> None:
        """A model's length that is reached before the join is not reached after it."""
        engine = replacing(0, "yz")
        engine.length = 7
        root = engine.add("r")
        fed(engine, root, "a", "b", SYNC, "c", EOS)
        assert text_of(root.sequence.context) == "ppyzc$"
        engine.assert_empty()

    def test_an_insertion_that_does_not_fit_is_cut(self) -> None:
        """It ends with the length, and what it has replaced is told."""
        engine = replacing(0, "yzyzyz")
        engine.length = 6
        root = engine.add("r")
        fed(engine, root, "a", SYNC)
        engine.driver.join_ready()
        (join,) = root.joins
        assert (join.num_merged, join.num_cut, join.num_replaced, root.outcome) == (4, 2, 2, "length")
        engine.assert_empty()

    def test_an_abort_before_the_join_keeps_all(self) -> None:
        """Nothing is cut as long as it waits."""
        engine = replacing(0, "y")
        root = engine.add("r")
        fed(engine, root, "a", PROMISE, SYNC)
        engine.abort(root)
        assert (text_of(root.sequence.context), root.num_replaced) == ("ppa!.", 0)
        engine.assert_empty()

    def test_a_child_that_replaces_gives_its_parent_what_is_left(self) -> None:
        """Its result is what its own context has."""
        engine = replacing(0, "y")
        root = engine.add("r")
        fed(engine, root, PROMISE, EOS)
        (child,) = root.children
        fed(engine, child, "a", SYNC, "c", EOS)
        engine.driver.join_ready()
        assert text_of(root.sequence.output_token_ids) == "!$yc"
        engine.assert_empty()


class TestKV:
    def injecting(self, start: int) -> tuple[PlainEngine, PlainBranch]:
        """A parent with one injected result, ``xy``, which the next sync token replaces from ``start`` on."""
        engine = replacing(start, child_merge_strategy="kv_inject", merge_separator="", handlers={}, sync_token_id=SYNC)
        root = engine.add("r")
        fed(engine, root, "a", PROMISE, SYNC)
        (child,) = root.children
        fed(engine, child, "x", "y", EOS)
        fed(engine, root, "b", "c")
        assert root.injected is not None and engine.num_injected
        engine.driver.triggers.by_id[SYNC] = Replaces(None)
        return engine, root

    @pytest.mark.parametrize(("start", "num_prefill"), [(6, 1), (5, 2), (4, 1), (0, 1)])
    def test_injected_kv_is_kept_as_a_whole_or_not_at_all(self, start: int, num_prefill: int) -> None:
        """Recomputed after a part of it, tokens would stand at other positions than before."""
        engine, root = self.injecting(start)
        fed(engine, root, SYNC)
        engine.driver.join_ready()
        assert root.joins[-1].num_prefill == num_prefill
        assert (root.injected is not None) == (start == 6)
        engine.abort(root)
        engine.assert_empty()

    def test_children_of_a_join_that_replaces_are_prefilled(self) -> None:
        """They may have seen what is not there any more."""
        engine = replacing(0, child_merge_strategy="kv_inject", merge_separator="")
        root = engine.add("r")
        fed(engine, root, "a", PROMISE, SYNC)
        (child,) = root.children
        fed(engine, child, "x", "y", EOS)
        fed(engine, root, EOS)
        assert (engine.num_injected, root.joins[0].num_prefill) == (0, 2)
        assert text_of(root.sequence.context) == "ppxy$"
        engine.assert_empty()

    def test_a_child_that_has_replaced_something_is_injected_from_where_its_tokens_are(self) -> None:
        """The engine of lists checks that the KV is that of the tokens."""
        engine = replacing(0, "y", child_merge_strategy="kv_inject", merge_separator="")
        root = engine.add("r")
        fed(engine, root, PROMISE)
        (child,) = root.children
        fed(engine, child, "a", "b", SYNC, "c", "d", EOS)
        engine.driver.triggers.by_id[SYNC] = Plain()
        fed(engine, root, SYNC, EOS)
        assert text_of(root.sequence.context) == "pp!.ycd$"
        assert engine.num_injected == 2
        engine.assert_empty()


class Plain(Replaces):
    """Waits for its children alone."""

    def __init__(self) -> None: ...

    def on_token(self, event: TokenEvent) -> Actions:
        return Actions(block=True)


def test_nobody_keeps_kv_for_a_parent_that_replaces() -> None:
    """What it gets is prefilled."""
    trees = Trees()
    root = trees.add_root(PlainSequence(num_computed_tokens=3), branch_with().tree.limits)
    spec = ChildSpec("r_child_0", "r", 0, 1, 1, 3, (), "parent", False)
    child = trees.spawn(root, spec, handler(), PlainSequence("r_child_0", output_token_ids=[5, 6]))
    trees.block(root, ALL, Replacement(2))
    end(trees, child)
    assert not keeps_kv(child)


@pytest.mark.parametrize(("position", "index"), [(-1, 4), (0, 5), (3, 6), (7, 8)])
def test_an_index_in_a_context_leaves_out_what_was_replaced(position: int, index: int) -> None:
    """Positions count the output, of which some tokens are gone."""
    assert ChildPositions(5, PLAIN, (range(1, 3), range(4, 6))).index_of(position) == index


def test_spawned_children_are_those_of_the_token_that_replaces() -> None:
    """A handler may spawn, block and replace at once; a child shares its parent's context as it is before the cut."""
    decision = decided(
        Asks(Actions((Spawn((5,)),), block=True, replace_from=0)), branch_with(num_sampled=3), vocab_size=None
    )
    assert isinstance(decision, Decision)
    ((spec, _),) = decision.children
    assert (spec.num_shared, decision.replacement) == (6, Replacement(2))


def test_a_cut_within_a_result_splits_what_stands_for_it() -> None:
    """The result of a child with a detached child of its own is put together in both of its parts."""
    trees = Trees()
    root = trees.add_root(PlainSequence(output_token_ids=[20, 21]), branch_with().tree.limits)
    child = child_of(trees, root, handler(), [30, 31, 32])
    detached = child_of(trees, child, Asks(Actions(), [90]), [40, EOS], position=2, is_detached=True)
    end(trees, detached)
    end(trees, child, "length")
    trees.join(child, joined(child), merged(child), 0, 0)
    trees.end(child)
    trees.block(root, ALL, NO_REPLACEMENT)
    trees.join(root, joined(root), merged(root), 0, 0)
    root.replace_last(2, len(root.sequence.output_token_ids))
    assert [each.is_replaced for each in root.merged] == [False, True]
    root.sequence.outcome = "length"
    assembled = Assembler(encode, None).assemble(root)
    assert [token_id for span in assembled.spans for token_id in span.token_ids] == [20, 21, 30, 90, 32]
    first, *_ = segments_of(assembled.spans, root.request_id, root.segments)
    assert first == Segment(0, 2, "sampled")


def test_a_result_that_is_there_twice_begins_anew() -> None:
    """One that a cut has split goes on; lengths tell them apart."""
    twice = [Segment(0, 3, "merged", "c"), Segment(3, 6, "merged", "c")]
    split = [Segment(0, 1, "merged", "c"), Segment(1, 3, "merged", "c", True)]
    lengths: dict[tuple[Origin, str | None], int] = {("merged", "c"): 3}
    assert [num_before for _, num_before in continued(twice, lengths)] == [0, 0]
    assert [num_before for _, num_before in continued(split, lengths)] == [0, 1]
