# SPDX-License-Identifier: Apache-2.0
"""What becomes of a recorded run: a page, a Perfetto trace, and the command that makes both."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mytests.harness.surgical import SYNC_HOOKS
from mytests.harness.trace_inputs import HEADER, UNTIL, forest
from mytests.harness.v0.recorded import fork_and_join, lane_of, picture_with, spawned, under_pressure
from sequence_hooks.trace import recorder
from sequence_hooks.trace.__main__ import main
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.events import Header
from sequence_hooks.trace.lanes import Arrow, Bar, Lane, Picture
from sequence_hooks.trace.page import to_html
from sequence_hooks.trace.perfetto import events_of
from sequence_hooks.trace.reader import read

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a recording that is still to be made."""
    return tmp_path / "run.jsonl"


def data_of(page: str) -> Any:
    """What a page has of its run."""
    return json.loads(page.split('type="application/json">')[1].split("</script>")[0])


class TestPage:
    @pytest.mark.parametrize("record", [fork_and_join, under_pressure])
    def test_it_is_self_contained(self, record: Any, path: Path) -> None:
        """It loads nothing, and its policy forbids it to."""
        page = to_html(picture_of(record(path)))
        assert "{{" not in page
        assert "default-src 'none'" in page
        assert not {"src=", "href=", "@import", "url(", "fetch(", "import("} & set(page.split('"'))

    def test_texts_and_names_are_escaped(self, path: Path) -> None:
        """A text cannot end its element: the embedded data has no "<" at all. A file may be called anything."""
        picture = picture_of(fork_and_join(path.with_name("<b>&.jsonl")))
        lane_of(picture).text = evil = "</script><script>alert(1)</script><!--"
        page = to_html(picture)
        assert data_of(page)["lanes"][0]["text"] == evil
        assert "<title>&lt;b&gt;&amp;.jsonl</title>" in page

    @pytest.mark.parametrize(("num_children", "most"), [(0, 2000), (9999, 400)])
    def test_a_long_text_is_cut(self, num_children: int, most: int) -> None:
        """So pages can still be opened: ten thousand texts are cut to fewer characters."""
        picture = forest([0], num_children=num_children)
        lane_of(picture, "cmpl-0000").text = "x" * 5000
        assert "x" * most + " \\u2026" in to_html(picture)

    def test_bars_are_durations(self) -> None:
        """In microseconds, which add up to the lane's end however the times are rounded."""
        data = data_of(to_html(forest([1 / 3], num_children=0)))
        (lane,) = data["lanes"]
        assert lane["start"] + sum(lane["bars"][1::3]) == lane["end"] == 4_333_333
        assert [data["states"][state] for state in lane["bars"][::3]] == [state for state, _ in UNTIL]

    @pytest.mark.parametrize(("model", "shown"), [("org/model", "org/model"), ("/srv/models/tiny", "tiny")])
    def test_a_model_in_a_folder_is_shown_by_its_name(self, model: str, shown: str, path: Path) -> None:
        """The folder itself is not disclosed."""
        recorder.begin(str(path), model, SYNC_HOOKS)
        assert f"<p>{shown} · " in to_html(picture_of(read(path)))


class TestCommand:
    def test_it_writes_both_beside_the_recording(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """It prints what each of them is for; or it writes where it is told to."""
        fork_and_join(path)
        assert main([str(path)]) == 0
        assert path.with_suffix(".html").read_text().startswith("<!DOCTYPE html>")
        assert json.loads(path.with_suffix(".perfetto.json").read_text())["traceEvents"]
        out, err = capsys.readouterr()
        uses = ["for any browser", "for ui.perfetto.dev or chrome://tracing"]
        assert ([line.split(": ")[1] for line in out.splitlines()], err) == (uses, "")
        assert main([str(path), "--html", str(path.with_name("a")), "--perfetto", str(path.with_name("b"))]) == 0
        assert {"a", "b"} <= {file.name for file in path.parent.iterdir()}

    def test_it_warns_of_a_cut(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """It goes on without the line that is cut off."""
        fork_and_join(path)
        path.write_bytes(path.read_bytes()[:-9])
        assert main([str(path)]) == 0
        assert "warning: the last line of" in capsys.readouterr().err

    def test_an_error_is_one_line(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """This holds for a missing file, and for one that is not a recording."""
        assert main([str(path)]) == 1
        path.write_text("no JSON\n")
        assert main([str(path)]) == 1
        missing, wrong = capsys.readouterr().err.splitlines()
        assert "No such file" in missing
        assert wrong.startswith("error: ") and "line 1" in wrong


def test_the_header_is_a_line_of_its_own(path: Path) -> None:
    """So an empty run has a trace, too."""
    recorder.begin(str(path), "a model", SYNC_HOOKS)
    recorded = read(path)
    assert isinstance(recorded.run, Header)
    assert picture_of(recorded).lanes == ()
    assert main([str(path)]) == 0


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


@pytest.mark.parametrize(("num_children", "counts"), [(1, [(0, 1), (1, 2), (2, 1), (4, 0)]), (0, [])])
def test_a_request_with_children_counts_those_that_compute(num_children: int, counts: list[Any]) -> None:
    """Its counter is its process's, and changes only where the number does; one thread alone shows as much."""
    counters = counters_of(forest([0, 1], num_children=num_children), pid=1)
    assert [(event["ts"] / 1e6, event["args"]["running"]) for event in counters] == counts


class TestFlows:
    def test_one_without_a_bar_is_left_out(self, tmp_path: Path) -> None:
        """A child that was aborted at once has no bar."""
        picture = picture_with(tmp_path / "run.jsonl", spawned("c", "r"))
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
