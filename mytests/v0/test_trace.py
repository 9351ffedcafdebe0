# SPDX-License-Identifier: Apache-2.0
"""Reading a recorded run, and laying out its lanes."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mytests.harness.surgical import SYNC_HOOKS, plan
from mytests.harness.v0.recorded import (
    bars_of,
    engine_recorded_to,
    fork_and_join,
    lane_of,
    spawned,
    under_pressure,
    written,
)
from sequence_hooks.trace import events, reader
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.page import to_html
from sequence_hooks.trace.perfetto import to_json
from sequence_hooks.trace.reader import TraceError, read
from sequence_hooks.tree.events import Joined
from sequence_hooks.tree.merge import Span


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a recording that is still to be made."""
    return tmp_path / "run.jsonl"


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

    @pytest.mark.parametrize("data", [b"", b'{"type":"swappedin","stream":"1","time":0,"sequence":"r"}\n'])
    def test_a_file_without_a_header_is_refused(self, data: bytes, path: Path) -> None:
        """It is not a recorded run."""
        path.write_bytes(data)
        with pytest.raises(TraceError, match="line 1: a recorded run begins with its header"):
            read(path)

    def test_a_second_header_is_refused(self, path: Path) -> None:
        """It means two recordings in one file."""
        fork_and_join(path)
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines, lines[0]]))
        with pytest.raises(TraceError, match=f"line {len(lines) + 1}: a second header"):
            read(path)

    def test_another_version_is_refused(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error names both versions and the way out."""
        monkeypatch.setattr(reader, "FORMAT_VERSION", 5)
        fork = written(path)
        with pytest.raises(TraceError, match="version 4 of the format, and this reads version 5; read it with"):
            read(fork)


class TestLanes:
    def test_what_a_parent_does(self, path: Path) -> None:
        """Consecutive decode steps are one bar; a resume is a prefill."""
        recorded = fork_and_join(path)
        states = [("waiting", 0), ("prefill", 6), ("decode", 4), ("blocked", 0), ("prefill", 8), ("decode", 1)]
        assert bars_of(recorded) == states

    def test_what_a_child_does(self, path: Path) -> None:
        """It prefills the promise, and then decodes."""
        assert bars_of(fork_and_join(path), "r_child_0") == [("waiting", 0), ("prefill", 1), ("decode", 2)]

    @pytest.mark.parametrize("record", [fork_and_join, under_pressure])
    def test_bars_follow_each_other(self, record: Any, path: Path) -> None:
        """They cover a lane from its start to its end without gaps."""
        for lane in picture_of(record(path)).lanes:
            assert lane.end is not None
            borders = [lane.start, *(bar.end for bar in lane.bars)]
            assert borders[:-1] == [bar.start for bar in lane.bars]
            assert borders[-1] == lane.end

    def test_children_follow_their_parent(self, path: Path) -> None:
        """They are in spawn order, each below its own parent."""
        engine = engine_recorded_to(path, SYNC_HOOKS)
        engine.add("r")
        engine.add("s")
        engine.run(plan(r="!!.", s="!", r_child_0="A", r_child_1="B", s_child_0="C"))
        lanes = picture_of(read(path)).lanes
        assert [(lane.request_id, lane.depth) for lane in lanes] == [
            *[("r", 0), ("r_child_0", 1), ("r_child_1", 1)],
            *[("s", 0), ("s_child_0", 1)],
        ]

    def test_trees_may_be_deep(self, path: Path) -> None:
        """A tree deeper than Python's recursion limit can be recorded, so it can be drawn, too."""
        depth = sys.getrecursionlimit() + 100
        stream = (events.SchedulerStarted, {"block_size": 4, "num_blocks": 8})
        parent = (events.Arrived, {"sequence": "r", "num_prompt_tokens": 1, "prompt": None})
        names = ["r", *(f"c{number}" for number in range(1, depth))]
        chain = [spawned(child, above) for above, child in itertools.pairwise(names)]
        picture = picture_of(read(written(path, stream, parent, *chain)))
        assert [lane.depth for lane in picture.lanes] == list(range(depth))
        assert json.loads(to_json(picture))["traceEvents"]
        assert "</html>" in to_html(picture)

    def test_a_label_is_noted(self, path: Path) -> None:
        """Where its child begins."""
        stream = (events.SchedulerStarted, {"block_size": 4, "num_blocks": 8})
        parent = (events.Arrived, {"sequence": "r", "num_prompt_tokens": 1, "prompt": None})
        _, lane = picture_of(read(written(path, stream, parent, spawned("c", "r", "Brakes")))).lanes
        assert [note.text for note in lane.notes] == ["Brakes"]

    def test_arrows_go_from_spawn_to_child_and_back(self, path: Path) -> None:
        """A merge begins where its child ends, and ends where its parent is joined."""
        picture = picture_of(fork_and_join(path))
        arrows = [(arrow.kind, arrow.source.request_id, arrow.target.request_id) for arrow in picture.arrows]
        down = [("spawn", "r", "r_child_0"), ("spawn", "r", "r_child_1")]
        assert arrows == [*down, ("merge", "r_child_0", "r"), ("merge", "r_child_1", "r")]
        merge, blocked = picture.arrows[2], lane_of(picture).bars[3]
        assert (merge.start, merge.end) == (lane_of(picture, "r_child_0").end, blocked.end)

    def test_a_preempted_sequence_waits(self, path: Path) -> None:
        """It then computes its tokens again."""
        recorded = under_pressure(path, policy="preserve")
        (preempted,) = [event for event in recorded.events if isinstance(event, events.Preempted)]
        assert [state for state, _ in bars_of(recorded, preempted.sequence)][2:5] == ["decode", "waiting", "prefill"]
        notes = [note.text for note in lane_of(picture_of(recorded), preempted.sequence).notes]
        assert notes == ["preempted: 12 tokens to recompute", "finished: stopped"]

    def test_notes_say_what_became_of_kv(self, path: Path) -> None:
        """Here KV is copied out to swap space, and back."""
        recorded = under_pressure(path, policy="swap", num_cpu_blocks=8)
        assert [note.text for note in lane_of(picture_of(recorded)).notes] == [
            "BLOCKED until it is resumed",
            "gave up KV: copied to swap space",
            "joined: 4 tokens merged, 0 of them with their KV, 5 to prefill",
            "KV copied back from swap space",
            "finished: stopped",
        ]

    def test_a_cut_is_noted(self, path: Path) -> None:
        """Here merged tokens would exceed the model's length."""
        engine = engine_recorded_to(path, SYNC_HOOKS, max_model_len=16)
        engine.add()
        engine.run(plan(r="!!.", r_child_0="ABCDE", r_child_1="VWXYZ"))
        notes = [note.text for note in lane_of(picture_of(read(path))).notes]
        assert "joined: 7 tokens merged, 0 of them with their KV, 0 to prefill, 4 cut off" in notes

    def test_an_aborted_sequence_was_blocked_to_its_end(self, path: Path) -> None:
        """No bar follows."""
        engine = engine_recorded_to(path, SYNC_HOOKS)
        engine.add()
        engine.run_until(lambda: bool(engine.scheduler.blocked), plan(r="!.", r_child_0="AAAAAA"))
        engine.scheduler.abort_seq_group("r")
        assert [state for state, _ in bars_of(read(path))][-1] == "blocked"

    def test_a_run_that_was_cut_off_ends_with_its_last_event(self, path: Path) -> None:
        """Here a step's end is unknown, a parent is still BLOCKED, and a request has only arrived."""
        engine = engine_recorded_to(path, SYNC_HOOKS)
        engine.add()
        engine.run_until(lambda: bool(engine.scheduler.blocked), plan(r="!.", r_child_0="AAAAAA"))
        engine.step({})
        engine.add("s")
        picture = picture_of(read(path))
        assert [(lane.request_id, lane.bars[-1].state) for lane in picture.lanes[:2]] == [
            *[("r", "blocked"), ("r_child_0", "decode")]
        ]
        assert [lane.bars[-1].end for lane in picture.lanes[:2]] == [picture.end] * 2
        assert [lane.end for lane in picture.lanes] == [None] * 3

    def test_a_sequence_that_ends_with_its_join_has_its_arrow(self, path: Path) -> None:
        """The arrow points to where it stops being BLOCKED, and ends."""
        engine = engine_recorded_to(path, SYNC_HOOKS)
        engine.add()
        engine.run(plan(r="!", r_child_0="ABC"))
        picture = picture_of(read(path))
        (*_, blocked, last), merge = lane_of(picture).bars, picture.arrows[1]
        assert (blocked.state, merge.end) == ("blocked", blocked.end)
        assert last.end == lane_of(picture).end

    def test_a_merge_begins_where_a_child_that_has_not_ended_is(self, path: Path) -> None:
        """With asynchronous output its end may be recorded after the join."""
        stream = (events.SchedulerStarted, {"block_size": 4, "num_blocks": 8})
        parent = (events.Arrived, {"sequence": "r", "num_prompt_tokens": 1, "prompt": None})
        joined = Joined("r", ("c",), (Span([20], "c", [0]),), 0, 1, 0, None, None)
        join = (events.TreeChanged, {"event": joined, "at": 3.0})
        assert picture_of(read(written(path, stream, parent, spawned("c", "r"), join))).arrows[1].start == 3.0

    @pytest.mark.parametrize(
        ("lines", "missing"),
        [(slice(1, 2), "stream"), (slice(2, 3), "sequence r of stream"), (slice(4, 5), "sequence r_child_0 of stream")],
    )
    def test_what_has_no_beginning_is_named(self, lines: slice, missing: str, path: Path) -> None:
        """It is missing if another engine began the file anew."""
        engine = engine_recorded_to(path)
        engine.add()
        engine.run(plan(r="!", r_child_0="A"))
        kept = path.read_bytes().splitlines(keepends=True)
        kept[lines] = []
        path.write_bytes(b"".join(kept))
        with pytest.raises(TraceError, match=rf"line \d: {missing} .*does not begin in the file; .*its own file"):
            picture_of(read(path))
