# SPDX-License-Identifier: Apache-2.0
"""Reading a recorded run, and laying out its lanes."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine, plan
from mytests.harness.v0.recorded import (
    bars_of,
    engine_recorded_to,
    fork_and_join,
    lane_of,
    picture_with,
    spawned,
    under_pressure,
    written,
)
from sequence_hooks.trace import events, reader
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.lanes import Picture
from sequence_hooks.trace.page import to_html
from sequence_hooks.trace.perfetto import to_json
from sequence_hooks.trace.reader import TraceError, read
from sequence_hooks.tree.events import Joined
from sequence_hooks.tree.merge import Span


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a recording that is still to be made."""
    return tmp_path / "run.jsonl"


def recorded_run(path: Path, *names: str, texts: dict[str, str], **sizes: Any) -> Picture:
    """The picture of requests that sample these texts, to their ends."""
    engine = engine_recorded_to(path, SYNC_HOOKS, **sizes)
    for name in names:
        engine.add(name)
    engine.run(plan(**texts))
    engine.assert_empty()
    return picture_of(read(path))


def recorded_until_blocked(path: Path) -> SurgicalEngine:
    """An engine whose request is BLOCKED, and whose child samples on."""
    engine = engine_recorded_to(path, SYNC_HOOKS)
    engine.add()
    engine.run_until(lambda: bool(engine.scheduler.blocked), plan(r="!.", r_child_0="AAAAAA"))
    return engine


def notes_of(picture: Picture, request_id: str = "r") -> list[str]:
    return [note.text for note in lane_of(picture, request_id).notes]


class TestReader:
    def test_a_last_line_that_is_cut_off_is_left_out(self, path: Path) -> None:
        """The engine ended while writing it."""
        whole = fork_and_join(path)
        path.write_bytes(path.read_bytes()[:-9])
        cut = read(path)
        assert (whole.is_cut_off, cut.is_cut_off) == (False, True)
        assert cut.events == whole.events[:-1]

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            (b'{"type":"step"', "truncated"),
            (b'{"type":"leap"}', "Invalid value 'leap'"),
            (b'{"type":"schedulerstarted","stream":"1.0","time":0.0}', "missing required field `block_size`"),
            (b'{"type":"\xff"}', "utf-8"),
        ],
    )
    def test_a_line_that_is_no_event_is_named(self, line: bytes, problem: str, path: Path) -> None:
        """The error has its number, the problem and the way out."""
        fork_and_join(path)
        lines = path.read_bytes().splitlines()
        path.write_bytes(b"\n".join([*lines[:3], line, *lines[4:], b""]))
        with pytest.raises(TraceError, match=rf"run\.jsonl, line 4: .*(?i:{problem}).*; delete the line, or record"):
            read(path)

    def test_a_file_has_one_header(self, path: Path) -> None:
        """Without it, it is not a recorded run; a second one means two recordings in one file."""
        fork_and_join(path)
        header, *others = path.read_bytes().splitlines(keepends=True)
        for lines, told in (
            ([], "line 1: a recorded run begins with its header"),
            (others, "line 1: a recorded run begins with its header"),
            ([header, *others, header], f"line {len(others) + 2}: a second header"),
        ):
            path.write_bytes(b"".join(lines))
            with pytest.raises(TraceError, match=told):
                read(path)

    def test_another_version_is_refused(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error names both versions and the way out."""
        monkeypatch.setattr(reader, "FORMAT_VERSION", 6)
        fork = written(path)
        with pytest.raises(TraceError, match="version 5 of the format, and this reads version 6; read it with"):
            read(fork)

    @pytest.mark.parametrize(
        ("lines", "missing"),
        [(slice(1, 2), "stream"), (slice(2, 3), "sequence r of stream"), (slice(4, 5), "sequence r_child_0 of stream")],
    )
    def test_what_has_no_beginning_is_named(self, lines: slice, missing: str, path: Path) -> None:
        """It is missing if another engine began the file anew."""
        recorded_run(path, "r", texts={"r": "!", "r_child_0": "A"})
        kept = path.read_bytes().splitlines(keepends=True)
        kept[lines] = []
        path.write_bytes(b"".join(kept))
        with pytest.raises(TraceError, match=rf"line \d: {missing} .*does not begin in the file; .*its own file"):
            picture_of(read(path))


class TestBars:
    def test_they_are_what_a_sequence_does(self, path: Path) -> None:
        """Consecutive decode steps are one; a resume is a prefill, and a child prefills the promise."""
        recorded = fork_and_join(path)
        states = [("waiting", 0), ("prefill", 6), ("decode", 4), ("blocked", 0), ("prefill", 8), ("decode", 1)]
        assert bars_of(recorded) == states
        assert bars_of(recorded, "r_child_0") == [("waiting", 0), ("prefill", 1), ("decode", 2)]

    @pytest.mark.parametrize("record", [fork_and_join, under_pressure])
    def test_they_follow_each_other(self, record: Any, path: Path) -> None:
        """They cover a lane from its start to its end without gaps."""
        for lane in picture_of(record(path)).lanes:
            assert lane.end is not None
            borders = [lane.start, *(bar.end for bar in lane.bars)]
            assert borders[:-1] == [bar.start for bar in lane.bars]
            assert borders[-1] == lane.end

    def test_a_preempted_sequence_waits(self, path: Path) -> None:
        """It then computes its tokens again."""
        recorded = under_pressure(path, policy="preserve")
        (preempted,) = [event for event in recorded.events if isinstance(event, events.Preempted)]
        assert [state for state, _ in bars_of(recorded, preempted.sequence)][2:5] == ["decode", "waiting", "prefill"]
        told = notes_of(picture_of(recorded), preempted.sequence)
        assert told == ["preempted: 12 tokens to recompute", "finished: stopped"]

    def test_an_aborted_sequence_was_blocked_to_its_end(self, path: Path) -> None:
        """No bar follows."""
        recorded_until_blocked(path).abort("r")
        assert bars_of(read(path))[-1] == ("blocked", 0)

    def test_a_run_that_was_cut_off_ends_with_its_last_event(self, path: Path) -> None:
        """Here a step's end is unknown, a parent is still BLOCKED, and a request has only arrived."""
        engine = recorded_until_blocked(path)
        engine.step({})
        engine.add("s")
        picture = picture_of(read(path))
        last = [(lane.request_id, lane.bars[-1].state, lane.bars[-1].end) for lane in picture.lanes[:2]]
        assert last == [("r", "blocked", picture.end), ("r_child_0", "decode", picture.end)]
        assert [lane.end for lane in picture.lanes] == [None] * 3


class TestLanes:
    def test_children_follow_their_parent(self, path: Path) -> None:
        """They are in spawn order, each below its own parent."""
        texts = {"r": "!!.", "s": "!", "r_child_0": "A", "r_child_1": "B", "s_child_0": "C"}
        lanes = [(lane.request_id, lane.depth) for lane in recorded_run(path, "r", "s", texts=texts).lanes]
        assert lanes == [("r", 0), ("r_child_0", 1), ("r_child_1", 1), ("s", 0), ("s_child_0", 1)]

    def test_trees_may_be_deep(self, path: Path) -> None:
        """A tree deeper than Python's recursion limit can be recorded, so it can be drawn, too."""
        depth = sys.getrecursionlimit() + 100
        names = ["r", *(f"c{number}" for number in range(1, depth))]
        picture = picture_with(path, *(spawned(child, above) for above, child in itertools.pairwise(names)))
        assert [lane.depth for lane in picture.lanes] == list(range(depth))
        assert json.loads(to_json(picture))["traceEvents"]
        assert "</html>" in to_html(picture)


class TestNotes:
    def test_they_say_what_became_of_kv(self, path: Path) -> None:
        """Here KV is copied out to swap space, and back."""
        assert notes_of(picture_of(under_pressure(path, policy="swap", num_cpu_blocks=8))) == [
            "BLOCKED until it is resumed",
            "gave up KV: copied to swap space",
            "joined: 4 tokens merged, 0 of them with their KV, 5 to prefill",
            "KV copied back from swap space",
            "finished: stopped",
        ]

    def test_a_cut_and_a_label_are_noted(self, path: Path) -> None:
        """Here merged tokens would exceed the model's length; a label is noted where its child begins."""
        texts = {"r": "!!.", "r_child_0": "ABCDE", "r_child_1": "VWXYZ"}
        told = notes_of(recorded_run(path, "r", texts=texts, max_model_len=16))
        assert "joined: 7 tokens merged, 0 of them with their KV, 0 to prefill, 4 cut off" in told
        assert notes_of(picture_with(path, spawned("c", "r", "Brakes")), "c") == ["Brakes"]


class TestArrows:
    def test_they_go_from_spawn_to_child_and_back(self, path: Path) -> None:
        """A merge begins where its child ends, and ends where its parent is joined."""
        picture = picture_of(fork_and_join(path))
        arrows = [(arrow.kind, arrow.source.request_id, arrow.target.request_id) for arrow in picture.arrows]
        down = [("spawn", "r", "r_child_0"), ("spawn", "r", "r_child_1")]
        assert arrows == [*down, ("merge", "r_child_0", "r"), ("merge", "r_child_1", "r")]
        merge, blocked = picture.arrows[2], lane_of(picture).bars[3]
        assert (merge.start, merge.end) == (lane_of(picture, "r_child_0").end, blocked.end)

    def test_a_sequence_that_ends_with_its_join_has_one(self, path: Path) -> None:
        """It points to where the sequence stops being BLOCKED, and ends."""
        picture = recorded_run(path, "r", texts={"r": "!", "r_child_0": "ABC"})
        (*_, blocked, last), merge = lane_of(picture).bars, picture.arrows[1]
        assert (blocked.state, merge.end) == ("blocked", blocked.end)
        assert last.end == lane_of(picture).end

    def test_a_merge_begins_where_a_child_that_has_not_ended_is(self, path: Path) -> None:
        """With asynchronous output its end may be recorded after the join."""
        joined = Joined("r", ("c",), (Span([20], "c", [0]),), 0, 1, (), None, None)
        join = (events.TreeChanged, {"event": joined, "at": 3.0})
        assert picture_with(path, spawned("c", "r"), join).arrows[1].start == 3.0
