# SPDX-License-Identifier: Apache-2.0
"""What becomes of a recorded run: a Perfetto trace."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mytests.harness.trace_inputs import HEADER, forest
from mytests.harness.v0.recorded import fork_and_join, spawned, under_pressure, written
from sequence_hooks.trace import events
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.lanes import Arrow, Bar, Lane, Picture
from sequence_hooks.trace.perfetto import events_of, to_json
from sequence_hooks.trace.reader import read


class WatchedBars(list[Bar]):
    """The bars of a lane, which count how often one of them is looked at."""

    num_looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.num_looks += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Bar]:
        for bar in super().__iter__():
            self.num_looks += 1
            yield bar


def indices(events: list[Any], kind: str) -> dict[str, int]:
    """The index of each process or thread, by its name."""
    what = kind.replace("sort_index", "name")
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == what}
    return {names[event["tid"]]: event["args"]["sort_index"] for event in events if event["name"] == kind}


def counters_of(picture: Picture, pid: int) -> list[Any]:
    """The events that count something of a process."""
    return [event for event in events_of(picture) if event["ph"] == "C" and event["pid"] == pid]


def flows_from(bars: list[Bar], *times: float) -> list[Any]:
    """The flows of a parent with these bars that spawns a child at these times."""
    parent, child = Lane("r", 0.0, 1, bars=bars), Lane("c", 0.0, 1, bars=[Bar("decode", 0.0, 1024.0, 1)])
    arrows = tuple(Arrow("spawn", parent, time, child, time) for time in times)
    found = events_of(Picture("", HEADER, (parent, child), arrows, (), 1024.0))
    return [event for event in found if event["ph"] in "sf"]


@pytest.fixture(params=[fork_and_join, under_pressure])
def picture(request: pytest.FixtureRequest, tmp_path: Path) -> Picture:
    """One trace with arrows, and one with notes."""
    return picture_of(request.param(tmp_path / "run.jsonl"))


class TestAnyRun:
    def test_it_is_one_json_object(self, picture: Picture) -> None:
        """The events are in the one place where viewers look."""
        trace = json.loads(to_json(picture))
        assert trace["otherData"]["model"] == "a model"
        assert trace["traceEvents"] == json.loads(json.dumps(list(events_of(picture))))

    def test_every_bar_has_its_place_and_time(self, picture: Picture) -> None:
        """Times are in microseconds."""
        bars = [event for event in events_of(picture) if event["ph"] == "X"]
        assert len(bars) == sum(len(lane.bars) for lane in picture.lanes)
        for bar in bars:
            assert {"name", "ts", "dur", "pid", "tid"} <= bar.keys()
            assert bar["ts"] % 1e6 == bar["dur"] % 1e6 == 0
            assert bar["dur"] > 0

    def test_flows_pair_up_within_bars(self, picture: Picture) -> None:
        """Each flow has a start and, no earlier, an end; both are within a bar of their thread."""
        events = list(events_of(picture))
        flows = [event for event in events if event["ph"] in "sf"]
        assert len(flows) == 2 * len(picture.arrows)
        for start, end in zip(flows[::2], flows[1::2], strict=True):
            assert (start["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
            assert (start["id"], start["name"]) == (end["id"], end["name"])
            assert start["ts"] <= end["ts"]
        for flow in flows:
            bars = [bar for bar in events if bar["ph"] == "X" and bar["tid"] == flow["tid"]]
            assert sum(bar["ts"] <= flow["ts"] < bar["ts"] + bar["dur"] for bar in bars) == 1

    def test_counters_have_blocks_and_sequences(self, picture: Picture) -> None:
        """Each step has one counter of each kind, apart from those of requests."""
        counters, num_steps = counters_of(picture, pid=0), len(picture.streams[0].samples)
        kinds = ["KV blocks", "KV blocks unshared", "sequences"]
        assert Counter(event["name"] for event in counters) == dict.fromkeys(kinds, num_steps)
        blocks = [event["args"] for event in counters if event["name"] == "KV blocks"]
        assert {args["used"] + args["free"] for args in blocks} == {picture.streams[0].num_blocks}


def test_a_process_is_a_request_and_a_thread_a_sequence(tmp_path: Path) -> None:
    """Each has a name, and its end the text of the whole output."""
    found = list(events_of(picture_of(fork_and_join(tmp_path / "run.jsonl"))))
    named = [event for event in found if event["ph"] == "M" and "name" in event["args"]]
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in named}
    assert names == {(0, 0): "engine", (1, 1): "r", (1, 2): "r_child_0", (1, 3): "r_child_1"}
    texts = [event["args"]["text"] for event in found if event["ph"] == "i" and event["args"]]
    assert texts == ["abAB\nCDEFz", "AB", "CDEF"]


def test_requests_are_in_order_of_arrival() -> None:
    """Below each are its children in spawn order, whatever other requests did meanwhile."""
    events = list(events_of(forest([0, 1], num_children=2)))
    assert indices(events, "process_sort_index") == {"engine": 0, "request cmpl-0000": 1, "request cmpl-0001": 4}
    names = [f"{name}{which}" for name in ("cmpl-0000", "cmpl-0001") for which in ("", "_child_0", "_child_1")]
    assert indices(events, "thread_sort_index") == {name: number for number, name in enumerate(names, 1)}


@pytest.mark.parametrize(("num_children", "counts"), [(1, [(0, 1), (1, 2), (2, 1), (4, 0)]), (0, [])])
def test_a_request_with_children_counts_those_that_compute(num_children: int, counts: list[Any]) -> None:
    """Its counter is its process's, and changes only where the number does; one thread alone shows as much."""
    counters = counters_of(forest([0, 1], num_children=num_children), pid=1)
    assert [(event["ts"] / 1e6, event["args"]["running"]) for event in counters] == counts


class TestFlows:
    def test_one_without_a_bar_is_left_out(self, tmp_path: Path) -> None:
        """A child that was aborted at once has no bar."""
        stream = (events.SchedulerStarted, {"block_size": 4, "num_blocks": 8})
        parent = (events.Arrived, {"sequence": "r", "num_prompt_tokens": 1, "prompt": None})
        picture = picture_of(read(written(tmp_path / "run.jsonl", stream, parent, spawned("c", "r"))))
        assert len(picture.arrows) == 1
        assert [event for event in events_of(picture) if event["ph"] in "sf"] == []

    def test_one_looks_at_few_bars(self) -> None:
        """A parent may have many bars and arrows: an arrow takes O(log n) looks, and drawing takes two per bar."""
        watched = WatchedBars(Bar("decode", second, second + 1, 1) for second in range(1024))
        assert len(flows_from(watched, *range(1000))) == 2000
        assert watched.num_looks <= 2 * 1024 + 1000 * 12

    @pytest.mark.parametrize(("time", "bound"), [(1.0, [1e6]), (2.0, [2e6 - 0.5]), (3.5, []), (5.0, [5e6 - 0.5])])
    def test_one_is_bound_to_a_bar_that_lasts(self, time: float, bound: list[float]) -> None:
        """A bar that takes no time cannot hold it; without a bar there is no flow."""
        ends = [(0.0, 2.0), (2.0, 2.0), (4.0, 4.0), (4.5, 5.0), (5.0, 5.0)]
        flows = flows_from([Bar("prefill", start, end, 1) for start, end in ends], time)
        assert [flow["ts"] for flow in flows if flow["ph"] == "s"] == bound
