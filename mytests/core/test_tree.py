# SPDX-License-Identifier: Apache-2.0
"""The trees: which steps a branch may take, what observers are told of them, and what is kept."""

import dataclasses
from itertools import count
from sys import getrecursionlimit
from typing import Any

import pytest

from mytests.harness.plain import LIMITS, Noted, PlainSequence, Trees, child_of, end, handler, merged, spec
from sequence_hooks.results import Join, Segment
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.events import Aborted, Assembled, Blocked, Ended, Joined, Spawned
from sequence_hooks.tree.injection_plan import InjectedKV
from sequence_hooks.tree.integrity import IntegrityError
from sequence_hooks.tree.manager import IllegalStep
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.positions import PLAIN, Positions
from sequence_hooks.tree.rules import joined as awaited
from sequence_hooks.tree.transcript import output_of
from sequence_hooks.tree.wait import ALL, Wait


def planted(**fields: Any) -> tuple[Trees, Branch[PlainSequence]]:
    """Trees with one root."""
    trees = Trees(clock=count(100.0, 2.5).__next__)
    return trees, trees.add_root(PlainSequence(**fields), LIMITS)


def joined(trees: Trees, branch: Branch[PlainSequence], room: int = 100) -> Join:
    children = awaited(branch)
    trees.join(branch, children, merged(branch, room), num_prefill=1, num_injected=0)
    return branch.joins[-1]


class TestLife:
    def test_what_it_sampled_is_its_output_without_joins(self) -> None:
        """In order; merged tokens are its child's."""
        trees, root = planted(output_token_ids=[1, 5])
        child = child_of(trees, root, handler(), [20, 21, 3])
        trees.block(root, ALL)
        assert end(trees, child)
        joined(trees, root)
        root.sequence.output_token_ids.append(6)
        assert (root.sequence.output_token_ids, root.sampled_token_ids) == ([1, 5, 20, 21, 6], [1, 5, 6])

    def test_a_parent_with_unjoined_children_is_blocked_at_its_end(self) -> None:
        """And finishes, once it is joined, as it had ended."""
        trees, root = planted(output_token_ids=[1, 3])
        only = child_of(trees, root, handler(), [20, 3])
        assert not end(trees, root)
        assert (root.phase, root.outcome, root.stop_tokens) == ("blocked", "stopped", range(1, 2))
        end(trees, only)
        joined(trees, root)
        assert root.finished_at_join
        assert trees.end(root)
        assert (root.phase, root.outcome, root.stop_tokens) == ("finished", "stopped", range(1, 2))
        assert (list(trees.branches), trees.has_unsettled) == ([], False)

    def test_the_time_blocked_is_of_each_join(self) -> None:
        """In seconds of the trees' own clock."""
        trees, root = planted()
        trees.block(root, ALL)
        joined(trees, root)
        assert list(trees.stats.blocked_times) == [2.5]


class TestSteps:
    @pytest.mark.parametrize("step", ["spawn", "block", "end"])
    def test_a_blocked_branch_takes_no_step_of_its_own(self, step: str) -> None:
        """The error names sequence, phase and step."""
        trees, root = planted()
        trees.block(root, ALL)
        steps = {
            "spawn": lambda: trees.spawn(root, spec(), handler(), PlainSequence("r_child_0")),
            "block": lambda: trees.block(root, ALL),
            "end": lambda: trees.end(root),
        }
        with pytest.raises(IllegalStep, match=f"^r is blocked and cannot {step}$"):
            steps[step]()

    def test_a_live_branch_is_not_joined(self) -> None:
        """Nor resumed: nobody waits."""
        trees, root = planted()
        with pytest.raises(IllegalStep, match=r"^r is live and cannot join$"):
            joined(trees, root)
        with pytest.raises(IllegalStep, match=r"^r does not wait for a caller$"):
            trees.resume(root, ())


class TestEvents:
    """Each transition is told once, to each observer, when it has happened."""

    def test_of_a_fork_and_its_join(self) -> None:
        """The parent is told of in the child's event, too."""
        first, second = Noted(), Noted()
        trees = Trees([first, second])
        root = trees.add_root(PlainSequence(output_token_ids=[1]), LIMITS)
        only = child_of(trees, root, handler(), [20, 3])
        trees.block(root, Wait("caller"))
        assert second.take() == [Spawned(spec()), Blocked("r", "caller")]
        assert first[0].request_id == "r"
        trees.resume(root, (40,))
        end(trees, only)
        trees.join(root, awaited(root), merged(root, room=2), num_prefill=3, num_injected=1)
        spans = (Span((20,), "r_child_0", [0]), Span((40,)))
        join = Joined("r", ("r_child_0",), spans, 0, 3, 1, "length", None)
        assert second.take() == [Ended("r_child_0", "stopped", (1, 2)), join]
        assert join.num_merged == 2
        assert first[2:] == [Ended("r_child_0", "stopped", (1, 2)), join]

    def test_an_end_with_children_is_an_end_and_a_wait(self) -> None:
        """In this order, since it is BLOCKED by its end; when it was joined, it ends for good."""
        noted = Noted()
        trees = Trees([noted])
        root = trees.add_root(PlainSequence(output_token_ids=[1, 3]), LIMITS)
        only = child_of(trees, root, handler(), [20])
        noted.clear()
        end(trees, root)
        assert noted.take() == [Ended("r", "stopped", (1, 2)), Blocked("r", "children")]
        trees.abort(only)
        assert noted.take() == [Aborted("r_child_0")]
        trees.join(root, awaited(root), merged(root), num_prefill=0, num_injected=0)
        trees.end(root)
        assert noted.take() == [
            Joined("r", ("r_child_0",), (), 0, 0, 0, None, None),
            Ended("r", "stopped", (1, 2)),
        ]
        assert noted.phases == ["live", "live", "blocked", "finished", "live", "finished"]

    def test_a_wait_for_detached_children_ends_with_a_join_of_none(self) -> None:
        """Then their results are put into the output."""
        noted = Noted()
        trees = Trees([noted])
        root = trees.add_root(PlainSequence(output_token_ids=[1, 3]), LIMITS)
        end(trees, child_of(trees, root, handler(), [20], is_detached=True), "length")
        end(trees, root)
        noted.clear()
        trees.join(root, awaited(root), merged(root), num_prefill=0, num_injected=0)
        assert root.joins == []
        trees.end(root)
        output = [Span((20,), "r_child_0", (0,)), Span((3,), "r", (1,))]
        trees.assemble(root, output)
        assert noted.take() == [
            Joined("r", (), (), 0, 0, 0, None, None),
            Ended("r", "stopped", (1, 2)),
            Assembled("r", ("r_child_0",), tuple(output)),
        ]
        assert root.joins == []


class TestBranch:
    def test_what_nobody_needs_is_forgotten_once(self) -> None:
        """The joined children, and all below them, those of an aborted one too."""
        trees, root = planted(output_token_ids=[1])
        first, second = child_of(trees, root, handler(), [20]), child_of(trees, root, handler(), [3])
        below = child_of(trees, first, handler(), [30])
        trees.block(root, ALL)
        trees.abort(first)
        trees.abort(below)
        end(trees, second)
        assert root.take_releasable() == []
        joined(trees, root)
        assert set(root.take_releasable()) == {first, second, below}
        assert root.take_releasable() == []

    def test_a_child_inherits_injected_kv(self) -> None:
        """With what was still to do left to its parent; forgotten with its context, as its positions are."""
        trees, root = planted(output_token_ids=[1])
        root.inject(InjectedKV(1, 2, glue=[0]))
        root.place(Positions([0, 1], [0, 5]))
        only = child_of(trees, root, handler(), [3])
        assert only.injected is not None and only.injected.glue == []
        assert only.positions is root.positions
        trees.block(root, ALL)
        end(trees, only)
        joined(trees, root)
        root.take_releasable()
        assert (only.injected, only.positions) == (None, PLAIN)
        root.discard_injected()
        assert (root.injected, root.positions.of(1)) == (None, 6)

    def test_its_place_in_the_tree(self) -> None:
        """Depth, root, and all below."""
        trees, root = planted()
        middle = child_of(trees, root, handler())
        leaf = child_of(trees, middle, handler())
        assert (leaf.depth, leaf.root, leaf.parent, middle.parent) == (2, root, middle, root)
        assert list(root.subtree()) == [root, middle, leaf]

    def test_a_tree_may_be_of_any_depth(self) -> None:
        """Deeper than Python's stack."""
        trees, root = planted(output_token_ids=[1])
        branch = root
        for _ in range(getrecursionlimit() + 10):
            branch = child_of(trees, branch, handler(), [20])
        assert branch.root.num_sampled_below == branch.depth + 1

    def test_an_output_is_made_anew_until_it_has_finished(self) -> None:
        """Then it is kept."""
        trees, root = planted()
        only = child_of(trees, root, handler(), [20])
        assert output_of(only).token_ids == (20,)
        only.sequence.output_token_ids += [21, 3]
        assert output_of(only).token_ids == (20, 21, 3)
        end(trees, only)
        kept = output_of(only)
        assert (kept.result_token_ids, kept.finish_reason, kept.text) == ((20, 21), "stopped", "<20><21><3>")
        only.sequence.output_token_ids.clear()
        assert output_of(only) is kept


class TestIntegrity:
    def test_a_sound_tree_passes(self) -> None:
        """In each phase."""
        trees, root = planted(output_token_ids=[1])
        child_of(trees, root, handler())
        trees.check_integrity()
        trees.block(root, Wait("caller"))
        trees.check_integrity()

    @pytest.mark.parametrize(
        ("field", "value", "fault"),
        [
            ("merged", [Segment(1, 9, "merged", "r_child_0")], r"has segments up to 9, and 2 output tokens"),
            (
                "merged",
                [Segment(1, 2, "merged"), Segment(0, 1, "merged")],
                "has segments that do not follow each other",
            ),
            ("_unjoined", {}, "is joined with a child that has not finished"),
            ("depth", 3, "has depth 3, and may have 2"),
            ("phase", "finished", "has finished, and it is not known how"),
            ("paused_for_caller", True, "waits for a caller, and is not blocked"),
        ],
    )
    def test_a_contradiction_is_told_with_all_trees(self, field: str, value: Any, fault: str) -> None:
        """Planted in a tree of two."""
        trees, root = planted(output_token_ids=[1, 20])
        child_of(trees, root, handler())
        setattr(root, field, value)
        with pytest.raises(IntegrityError, match=rf"^r {fault}[^\n]*\ntrees:\n(?s:.*)r: .*2 \+ 2 tokens") as error:
            trees.check_integrity()
        assert "\n  r_child_0: live" in str(error.value)

    def test_limits_themselves_are_allowed(self) -> None:
        """Three unfinished children, and a depth of two."""
        trees, root = planted()
        branch = root
        for _ in range(LIMITS.max_child_depth):
            branch, *_ = [child_of(trees, branch, handler()) for _ in range(LIMITS.max_children)]
        trees.check_integrity()

    def test_too_many_children_are_told(self) -> None:
        """Unfinished ones."""
        trees, root = planted()
        for _ in range(4):
            child_of(trees, root, handler())
        with pytest.raises(IntegrityError, match="has 4 unfinished children, and may have 3"):
            trees.check_integrity()

    def test_too_many_sequences_are_told(self) -> None:
        """Of the whole tree, finished or not."""
        trees = Trees()
        root = trees.add_root(PlainSequence(), dataclasses.replace(LIMITS, max_tree_sequences=2))
        only = child_of(trees, root, handler(), [20])
        trees.check_integrity()
        end(trees, only)
        child_of(trees, root, handler())
        with pytest.raises(IntegrityError, match="r has a tree of 3 sequences, and may have 2"):
            trees.check_integrity()

    def test_the_finished_are_not_looked_at(self) -> None:
        """Nobody would join them."""
        trees, root = planted()
        trees.recheck(root)
        root.phase, root.outcome = "finished", "stopped"
        with pytest.raises(IntegrityError, match=r"\['r'\] have finished, and are still to be looked at"):
            trees.check_integrity()
