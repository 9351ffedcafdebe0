# SPDX-License-Identifier: Apache-2.0
"""The trees: which steps a branch may take, what observers are told of them, and what is kept."""

import dataclasses
from itertools import count
from sys import getrecursionlimit
from typing import Any

import pytest

from mytests.harness.plain import LIMITS, Noted, PlainSequence, Trees, child_of, end, handler, merged, spec
from sequence_hooks.results import Join, Segment, TreeFields
from sequence_hooks.serving.live.trees import LiveRequest, LiveRequests, together, tree_of
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.events import Aborted, Blocked, Ended, Joined, Spawned
from sequence_hooks.tree.injection_plan import InjectedKV
from sequence_hooks.tree.integrity import IntegrityError
from sequence_hooks.tree.manager import IllegalStep
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.positions import PLAIN, Positions
from sequence_hooks.tree.rules import joined as awaited
from sequence_hooks.tree.transcript import output_of, set_tree, waiting_of
from sequence_hooks.tree.wait import ALL, Wait


def planted(**fields: Any) -> tuple[Trees, Branch[PlainSequence]]:
    """Trees with one root."""
    trees = Trees(clock=count(100.0, 2.5).__next__)
    return trees, trees.add_root(PlainSequence(**fields), LIMITS)


def joined(trees: Trees, branch: Branch[PlainSequence], room: int = 100) -> Join:
    trees.join(branch, awaited(branch), merged(branch, room), num_prefill=1)
    return branch.joins[-1]


class TestLife:
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

    def test_only_a_child_is_cancelled_and_once(self) -> None:
        """Anything else is a fault of the engine."""
        trees, root = planted(output_token_ids=[1])
        children = [child_of(trees, root, handler(), is_detached=each) for each in (False, True)]
        trees.block(root, Wait(join_when=1))
        for child in children:
            trees.cancel(child)
        for branch in (root, *children):
            with pytest.raises(IllegalStep, match=f"^{branch.request_id} is no child that can be cancelled$"):
                trees.cancel(branch)


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
        assert (first[0].request_id, Blocked("r", "caller", (1,), 1).wait) == ("r", Wait("caller", (1,), 1))
        trees.resume(root, (40,))
        end(trees, only)
        trees.join(root, awaited(root), merged(root, room=2), num_prefill=3, injected=((1, 2),))
        spans = (Span((20,), "r_child_0", [0]), Span((40,)))
        join = Joined("r", ("r_child_0",), spans, 0, 3, ((1, 2),), "length", None)
        assert second.take() == [Ended("r_child_0", "stopped", (1, 2)), join]
        assert (join.num_merged, join.num_injected) == (2, 1)
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
        trees.join(root, awaited(root), merged(root), num_prefill=0)
        trees.end(root)
        assert noted.take() == [
            Joined("r", ("r_child_0",), (), 0, 0, (), None, None),
            Ended("r", "stopped", (1, 2)),
        ]
        assert noted.phases == ["live", "live", "blocked", "finished", "live", "finished"]


class TestBranch:
    def test_a_child_inherits_injected_kv(self) -> None:
        """With what was still to do left to its parent; forgotten with its context, as its positions are."""
        trees, root = planted(output_token_ids=[1])
        root.inject(InjectedKV(1, 2, glue=[0]))
        root.place(Positions([0, 1], [0, 5]))
        only = child_of(trees, root, handler(), [3])
        assert only.injected == InjectedKV(1, 2, copies=[], glue=[])
        assert only.positions is root.positions
        trees.block(root, ALL)
        end(trees, only)
        joined(trees, root)
        root.take_releasable()
        assert (only.injected, only.positions) == (None, PLAIN)
        trees.discard_injected(root)
        trees.discard_injected(root)
        assert (root.injected, root.positions.of(1), root.recomputed_at) == (None, 6, [1])

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

    def test_who_ends_as_cancelled_was_cancelled(self) -> None:
        """A contradiction is told."""
        trees, root = planted(output_token_ids=[1])
        child_of(trees, root, handler()).outcome = "cancelled"
        with pytest.raises(IntegrityError, match="r_child_0 was cancelled, and its parent has not gone on without it"):
            trees.check_integrity()

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


def test_lists_of_several_servers_are_one() -> None:
    """Those that run, the oldest first, and the last that have ended; no more than a client asks for."""

    def one(name: str, started: float, ended: float | None) -> LiveRequest:
        return LiveRequest(name, started, ended, ended is not None, {}, 0, 0, ())

    here = LiveRequests(2, (one("b", 2, None), one("d", 4, None), one("old", 0, 5.0), one("new", 1, 9.0)))
    there = LiveRequests(1, (one("c", 3, None), one("newer", 2, 10.0)))
    found = together([here, there], limit=2)
    assert (found.num_unfinished, [each.request_id for each in found.requests]) == (3, ["b", "c", "new", "newer"])


def test_who_still_runs_when_its_request_has_ended_was_aborted() -> None:
    """With all below it; one that has ended before is told as it was."""
    trees, root = planted(output_token_ids=[1])
    first, second = (child_of(trees, root, handler(), [20, 3]) for _ in range(2))
    child_of(trees, second, handler(), [4])
    end(trees, first)
    told = TreeFields()
    set_tree(told, root)
    ended, running = told.children
    (below,) = running.children
    assert (ended.failed, ended.finish_reason) == (False, first.sequence.finish_reason)
    assert {(each.failed, each.finish_reason) for each in (running, below)} == {(True, "abort")}


def test_the_page_says_for_how_many_a_sequence_waits() -> None:
    """And its caller, for whom."""
    trees, root = planted(output_token_ids=[1])
    first, *_ = [child_of(trees, root, handler(), [20, 3]) for _ in range(3)]
    trees.block(root, Wait("caller", (0, 2), 2))
    assert [each.num_awaited for each in tree_of(root, 9)] == [2, 0, 0, 0]
    assert tree_of(root, 9)[0].awaited == waiting_of(root, 0).children == ("r_child_0", "r_child_2")
    end(trees, first)
    assert (tree_of(root, 9)[0].num_awaited, waiting_of(root, 0).num_unfinished_children) == (1, 1)
