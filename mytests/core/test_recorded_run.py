# SPDX-License-Identifier: Apache-2.0
"""Trees that are observed by a `Recorder` leave a run that the command draws."""

import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mytests.harness.plain import HOOKS, LIMITS, PlainSequence, Trees, child_of, end, handler, merged
from sequence_hooks.config.choices import ChildContext
from sequence_hooks.trace import events
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.lanes import Lane
from sequence_hooks.trace.observer import NO_RECORDER, TreeRecorder
from sequence_hooks.trace.reader import read
from sequence_hooks.trace.recorder import Recorder, begin
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.rules import joined as awaited
from sequence_hooks.tree.wait import ALL, Wait


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def recorded(path: Path, *output: int) -> tuple[Recorder, Trees, Branch[PlainSequence]]:
    """A request that has sampled these tokens, recorded there; each event a second after the one before."""
    begin(str(path), "a model", HOOKS)
    recorder = Recorder(str(path), count().__next__)
    trees = Trees([TreeRecorder(recorder)])
    recorder.note(events.SchedulerStarted, block_size=4, num_blocks=8)
    recorder.note(events.Arrived, sequence="r", num_prompt_tokens=2, prompt=None)
    return recorder, trees, trees.add_root(PlainSequence(output_token_ids=list(output)), LIMITS)


def waits_of(lane: Lane) -> list[str]:
    return [note.text for note in lane.notes if "BLOCKED" in note.text]


@pytest.fixture
def run(path: Path) -> Path:
    """A parent that waits for one child."""
    recorder, trees, root = recorded(path, 1)
    only = child_of(trees, root, handler(), [20, 3])
    trees.block(root, ALL)
    counts = {"num_used_blocks": 1, "num_unshared_blocks": 2, "num_blocked": 1, "num_waiting": 0}
    recorder.note(events.Step, prefill=[], decode=["r_child_0"], **counts)
    end(trees, only)
    trees.join(root, awaited(root), merged(root), num_prefill=2)
    return path


def test_the_command_draws_it(run: Path) -> None:
    """Without an engine, and without torch."""
    code = "import runpy, sys; runpy.run_module('sequence_hooks.trace', run_name='__main__', alter_sys=True)"
    subprocess.run([sys.executable, "-c", code, str(run)], check=True)
    assert "r_child_0" in run.with_suffix(".html").read_text()
    assert "r_child_0" in run.with_suffix(".perfetto.json").read_text()


def test_a_name_that_cannot_be_written_ends_the_recording(run: Path) -> None:
    """The engine goes on."""
    recorder, before = Recorder(str(run)), run.read_bytes()
    for name in ("\ud800", "r"):
        recorder.note(events.SwappedIn, sequence=name)
    assert run.read_bytes() == before


def test_two_requests_may_have_one_id() -> None:
    """The end of one leaves the other's tree."""
    trees = Trees()
    first, second = (trees.add_root(PlainSequence("r", output_token_ids=[3]), LIMITS) for _ in range(2))
    end(trees, first)
    assert list(trees.branches) == [second]


def test_silence_costs_no_clock() -> None:
    """Without a recording nothing is written down."""
    assert (NO_RECORDER.is_recording, NO_RECORDER.now()) == (False, 0.0)
    NO_RECORDER.note(events.SwappedIn, sequence="r")


def test_detached_children_are_drawn(path: Path) -> None:
    """With what they see, and an arrow to the end of their request, whose output has their results."""
    _, trees, root = recorded(path, 1, 3)
    contexts: list[ChildContext] = ["before_trigger", "none"]
    for context in contexts:
        end(trees, child_of(trees, root, handler(), [20, 3], context=context, is_detached=True))
    assert not end(trees, root)
    trees.join(root, awaited(root), merged(root), num_prefill=0)
    assert end(trees, root)
    trees.assemble(root, [Span([1, 20, 20], "r", range(3))])
    picture = picture_of(read(path))
    assert [note.text for note in picture.lanes[1].notes] == [
        "detached: only the end of its request waits for it",
        "its context has its parent up to the trigger, then its prefix",
    ]
    assert "nothing of its parent" in picture.lanes[2].notes[1].text
    assert picture.lanes[0].notes[-1].text == "its output has the results of 2 detached children"
    assert [arrow.kind for arrow in picture.arrows] == ["spawn", "spawn", "merge", "merge"]


def test_who_was_cancelled_is_drawn(path: Path) -> None:
    """Whichever the engine tells first: of its end, which it takes for an abort, or of its tree."""
    recorder, trees, root = recorded(path, 1)
    first, second, third = (child_of(trees, root, handler(), [20, 3]) for _ in range(3))
    trees.block(root, Wait(numbers=(0, 1, 2), join_when=1))
    aborted: dict[str, Any] = {"reason": "aborted", "num_output_tokens": 2, "text": ""}
    recorder.note(events.Finished, sequence="r_child_0", **aborted)
    for branch in (first, second):
        trees.cancel(branch)
    recorder.note(events.Finished, sequence="r_child_1", **aborted)
    end(trees, third)
    trees.join(root, [third], merged(root), num_prefill=2)
    trees.block(root, Wait("caller"))
    lanes = picture_of(read(path)).lanes
    assert [lane.reason for lane in lanes] == ["unfinished", "cancelled", "cancelled", "unfinished"]
    assert waits_of(lanes[0]) == ["BLOCKED until its children 0, 1, 2 finish, 1 of them", "BLOCKED until it is resumed"]


def test_who_ends_without_children_is_drawn(path: Path) -> None:
    """It is BLOCKED for no longer than the engine needs to cancel them."""
    _, trees, root = recorded(path, 1)
    child = child_of(trees, root, handler(), [20, 3])
    root.sequence.outcome = "stopped"
    assert not trees.end(root, wait=Wait(join_when=0))
    trees.cancel(child)
    first, second = picture_of(read(path)).lanes
    assert waits_of(first) == ["BLOCKED at its end until its unjoined children are cancelled"]
    assert "cancelled: its parent goes on without it" in [note.text for note in second.notes]
