# SPDX-License-Identifier: Apache-2.0
"""Joins that replace the end of a context, as the rules and the driver see them."""

import dataclasses
from itertools import pairwise

import pytest

from mytests.harness.characters import EOS, PROMISE, ids
from mytests.harness.plain import (
    Asks,
    PlainSequence,
    Trees,
    branch_with,
    child_of,
    decided,
    encode,
    end,
    handler,
    merged,
)
from mytests.harness.plain_engine import HOOKS as PLAIN_HOOKS
from mytests.harness.plain_engine import PlainEngine
from mytests.harness.stepped import plan
from sequence_hooks.handlers import Actions, TokenEvent
from sequence_hooks.results import Origin, Segment
from sequence_hooks.tree.assembly import Assembler, segments_of
from sequence_hooks.tree.positions import PLAIN, ChildPositions
from sequence_hooks.tree.replacement import NO_REPLACEMENT, continued, with_replaced
from sequence_hooks.tree.rules import Decision, Refusal, joined
from sequence_hooks.tree.wait import ALL


class Replaces(Asks):
    """Replaces from where a test says."""

    start = 0

    def __init__(self, tokenizer: object) -> None:
        super().__init__(None)

    def on_token(self, event: TokenEvent) -> Actions:
        return Actions(block=True, replace_from=self.start)


HOOKS = dataclasses.replace(PLAIN_HOOKS, child_merge_strategy="kv_inject", handlers={ord("*"): f"{__name__}.Replaces"})


class TestDecide:
    @pytest.mark.rule(15)
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


class TestKV:
    @pytest.mark.rule(15)
    @pytest.mark.parametrize(("start", "num_prefill"), [(6, 1), (5, 2), (4, 1), (0, 1)])
    def test_injected_kv_is_kept_as_a_whole_or_not_at_all(self, start: int, num_prefill: int) -> None:
        """Recomputed after a part of it, tokens would stand at other positions than before."""
        Replaces.start = start
        engine = PlainEngine(HOOKS)
        root = engine.add(prompt="pp")
        # The context is "pp", and "a!.xybc*" of which "xy" is injected.
        engine.run_until(lambda: len(root.joins) == 2, plan(r="a!.bc*", r_child_0="xy"))
        assert engine.num_injected() and root.joins[-1].num_prefill == num_prefill
        assert (root.injected is not None) == (start == 6)


@pytest.mark.parametrize(("position", "index"), [(-1, 4), (0, 5), (3, 6), (7, 8)])
def test_an_index_in_a_context_leaves_out_what_was_replaced(position: int, index: int) -> None:
    """Positions count the output, of which some tokens are gone."""
    assert ChildPositions(5, PLAIN, (range(1, 3), range(4, 6))).index_of(position) == index


def test_a_cut_within_a_result_splits_what_stands_for_it() -> None:
    """The result of a child with a detached child of its own is put together in both of its parts."""
    trees = Trees()
    root = trees.add_root(PlainSequence(output_token_ids=[20, 21]), branch_with().tree.limits)
    child = child_of(trees, root, handler(), [30, 31, 32])
    end(trees, child_of(trees, child, Asks(Actions(), [90]), [40, EOS], position=2, is_detached=True))
    end(trees, child, "length")
    trees.join(child, joined(child), merged(child), 0)
    trees.end(child)
    trees.block(root, ALL, NO_REPLACEMENT)
    trees.join(root, joined(root), merged(root), 0)
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


def test_what_was_replaced_is_no_part_of_the_context() -> None:
    """It stays in the output, and the sequence goes on without it; what was merged it has not sampled."""
    Replaces.start = 1
    engine, script = PlainEngine(HOOKS), plan(r="a!b*c", r_child_0="xy")
    root = engine.add(prompt="pp")
    engine.run_until(lambda: len(root.sequence.output_token_ids) == 7, script)
    assert (list(root.output_in_context), len(root.replaced)) == (ids("axyc"), 1)
    assert root.sampled_token_ids == [ord("a"), PROMISE, *ids("b*c")]
    engine.run(script)
