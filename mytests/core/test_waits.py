# SPDX-License-Identifier: Apache-2.0
"""Waits for some children: what trees note of them, and what the driver asks an engine for."""

import dataclasses
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mytests.fuzz.naming import HANDLERS, NEWEST
from mytests.harness.characters import EOS, PROMISE, SYNC
from mytests.harness.plain import HOOKS as PLAIN
from mytests.harness.plain import LIMITS, Noted, PlainSequence, Trees, child_of, end, handler, merged
from mytests.harness.plain_engine import HOOKS, PlainEngine, fed
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.serving.live.trees import tree_of
from sequence_hooks.trace import events
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.observer import TreeRecorder
from sequence_hooks.trace.reader import read
from sequence_hooks.trace.recorder import Recorder, begin
from sequence_hooks.tree.events import Blocked, Cancelled
from sequence_hooks.tree.integrity import IntegrityError
from sequence_hooks.tree.manager import IllegalStep
from sequence_hooks.tree.rules import joined
from sequence_hooks.tree.transcript import output_of, waiting_of
from sequence_hooks.tree.wait import Wait


def waiting(wait: Wait, *observers: Any) -> tuple[Trees, Any, list[Any]]:
    """Trees with a BLOCKED parent, and its three children."""
    trees = Trees(observers)
    root = trees.add_root(PlainSequence(output_token_ids=[1]), LIMITS)
    children = [child_of(trees, root, handler(), [20, 3]) for _ in range(3)]
    trees.block(root, wait)
    return trees, root, children


class TestTrees:
    def test_a_wait_is_told(self) -> None:
        """As the event, and as the value that was asked for."""
        noted, wait = Noted(), Wait("caller", (1,), 1)
        waiting(wait, noted)
        (event,) = [event for event in noted if isinstance(event, Blocked)]
        assert (event, event.wait) == (Blocked("r", "caller", (1,), 1), wait)

    def test_what_is_not_joined_stays_unjoined(self) -> None:
        """And its context stays, while that of the joined one may be released."""
        trees, root, (first, second, third) = waiting(Wait(numbers=(1,)))
        end(trees, second)
        trees.join(root, joined(root), merged(root), num_prefill=1, num_injected=0)
        assert (root.unjoined, root.take_releasable()) == ([first, third], [second])
        assert [child.is_unjoined for child in (first, second, third, root)] == [True, False, True, False]
        trees.check_integrity()

    def test_a_cancelled_child_ends_with_what_is_below(self) -> None:
        """It is told as cancelled, whether or not it had ended; a detached one below it, too."""
        noted = Noted()
        trees, root, (first, second, third) = waiting(Wait(join_when=1), noted)
        below = child_of(trees, first, handler(), [30], is_detached=True)
        end(trees, second)
        end(trees, third)
        assert output_of(third).cancelled is False
        for branch in (below, first, third):
            trees.cancel(branch)
        trees.join(root, [second], merged(root), num_prefill=1, num_injected=0)
        assert noted[-4:-1] == [Cancelled(branch.request_id) for branch in (below, first, third)]
        assert [
            (each.finish_reason, each.cancelled, each.failed) for each in map(output_of, (below, first, third))
        ] == [
            ("cancelled", True, False),
            ("cancelled", True, False),
            ("stopped", True, False),
        ]
        assert output_of(third).result_token_ids == (20,)
        assert (trees.stats.num_cancelled, trees.stats.num_failed) == (3, 0)
        assert set(root.take_releasable()) == {first, second, third, below}
        trees.check_integrity()

    def test_only_a_child_is_cancelled_and_once(self) -> None:
        """Anything else is a fault of the engine."""
        trees, root, (first, *_) = waiting(Wait(join_when=1))
        trees.cancel(first)
        for branch in (root, first):
            with pytest.raises(IllegalStep, match=f"^{branch.request_id} is no child that can be cancelled$"):
                trees.cancel(branch)

    def test_who_ends_as_cancelled_was_cancelled(self) -> None:
        """A contradiction is told."""
        trees, _, (first, *_) = waiting(Wait(join_when=1))
        first.outcome = "cancelled"
        with pytest.raises(IntegrityError, match="r_child_0 was cancelled, and its parent has not gone on without it"):
            trees.check_integrity()

    def test_the_page_says_for_how_many_it_waits(self) -> None:
        """And its caller, for whom."""
        trees, root, (_, second, _) = waiting(Wait(join_when=2))
        assert [each.num_awaited for each in tree_of(root, 9)] == [2, 0, 0, 0]
        end(trees, second)
        assert tree_of(root, 9)[0].num_awaited == 1
        _, root, _ = waiting(Wait("caller", (0, 2)))
        told = waiting_of(root, 0)
        assert (told.children, told.num_unfinished_children) == (("r_child_0", "r_child_2"), 2)


class TestDriver:
    def test_a_child_is_joined_by_its_number(self) -> None:
        """Its siblings are joined at the end."""
        engine = PlainEngine(dataclasses.replace(HOOKS, handlers=HANDLERS))
        root = engine.add("r")
        fed(engine, root, PROMISE, PROMISE, NEWEST)
        first, second = root.children
        fed(engine, second, "b", EOS)
        fed(engine, root, "x", EOS)
        fed(engine, first, "a", EOS)
        engine.driver.join_ready()
        assert "".join(map(chr, root.sequence.output_token_ids[2:])) == f"nbx{chr(EOS)}a"
        engine.assert_empty()

    @pytest.mark.parametrize("strategy", ["kv_inject", "concatenate"])
    def test_the_rest_is_cancelled(self, strategy: str) -> None:
        """Before its parent is given anything, with all below; a configured number holds for each wait."""
        hooks = SpecialKwargs(
            promise_token_id=PROMISE, sync_token_id=SYNC, block_on="sync", merge_separator="", join_when=1,
            max_child_depth=2, child_merge_strategy=strategy,
        )  # fmt: skip
        engine = PlainEngine(hooks)
        root = engine.add("r")
        fed(engine, root, PROMISE, PROMISE, PROMISE, SYNC)
        first, second, third = root.children
        fed(engine, first, PROMISE, SYNC)
        for child in (third, second):
            engine.sample(child, ord("b"))
            engine.sample(child, EOS)
        engine.driver.join_ready()
        assert [each.outcome for each in (first, *first.children, second, third)] == [
            *("cancelled", "cancelled"),
            *("stopped", "stopped"),
        ]
        assert [each.is_cancelled for each in root.children] == [True, False, True]
        assert (engine.kept, engine.queue) == ({}, [root])
        fed(engine, root, EOS)
        engine.assert_empty()


def test_a_picture_shows_who_was_cancelled(tmp_path: Path) -> None:
    """Whichever the engine tells first: of its end, which it takes for an abort, or of its tree."""
    path = tmp_path / "run.jsonl"
    begin(str(path), "a model", PLAIN)
    recorder = Recorder(str(path), count().__next__)
    trees = Trees([TreeRecorder(recorder)])
    recorder.note(events.SchedulerStarted, block_size=4, num_blocks=8)
    recorder.note(events.Arrived, sequence="r", num_prompt_tokens=2, prompt=None)
    root = trees.add_root(PlainSequence(output_token_ids=[1]), LIMITS)
    first, second, third = (child_of(trees, root, handler(), [20, 3]) for _ in range(3))
    trees.block(root, Wait(numbers=(0, 1, 2), join_when=1))
    aborted: dict[str, Any] = {"reason": "aborted", "num_output_tokens": 2, "text": ""}
    recorder.note(events.Finished, sequence="r_child_0", **aborted)
    for branch in (first, second):
        trees.cancel(branch)
    recorder.note(events.Finished, sequence="r_child_1", **aborted)
    end(trees, third)
    trees.join(root, [third], merged(root), num_prefill=2, num_injected=0)
    trees.block(root, Wait("caller"))
    lanes = picture_of(read(path)).lanes
    assert [lane.reason for lane in lanes] == ["unfinished", "cancelled", "cancelled", "unfinished"]
    assert [note.text for note in lanes[0].notes if "BLOCKED" in note.text] == [
        "BLOCKED until its children 0, 1, 2 finish, 1 of them",
        "BLOCKED until it is resumed",
    ]


def test_a_picture_shows_who_ends_without_children(tmp_path: Path) -> None:
    """It is BLOCKED for no longer than the engine needs to cancel them."""
    path = tmp_path / "run.jsonl"
    begin(str(path), "a model", PLAIN)
    recorder = Recorder(str(path), count().__next__)
    trees = Trees([TreeRecorder(recorder)])
    recorder.note(events.SchedulerStarted, block_size=4, num_blocks=8)
    recorder.note(events.Arrived, sequence="r", num_prompt_tokens=2, prompt=None)
    root = trees.add_root(PlainSequence(output_token_ids=[1]), LIMITS)
    child = child_of(trees, root, handler(), [20, 3])
    root.sequence.outcome = "stopped"
    assert not trees.end(root, wait=Wait(join_when=0))
    trees.cancel(child)
    first, second = picture_of(read(path)).lanes
    assert [note.text for note in first.notes if "BLOCKED" in note.text] == [
        "BLOCKED at its end until its unjoined children are cancelled"
    ]
    assert "cancelled: its parent goes on without it" in [note.text for note in second.notes]
