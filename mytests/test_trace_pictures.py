# SPDX-License-Identifier: Apache-2.0
"""What becomes of a recorded run: a Perfetto trace and a page, and the command that makes them."""

import json
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from setuptools.config.pyprojecttoml import read_configuration

from mytests.recorded import fork_and_join, lane_of, under_pressure, written
from mytests.surgical import SYNC_HOOKS
from sequence_hooks.trace import events, recorder
from sequence_hooks.trace.__main__ import main
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.events import Header
from sequence_hooks.trace.lanes import Arrow, Bar, Lane, Picture
from sequence_hooks.trace.page import to_html
from sequence_hooks.trace.perfetto import events_of, to_json
from sequence_hooks.trace.reader import read

ROOT = Path(__file__).parent.parent


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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a recording that is still to be made."""
    return tmp_path / "run.jsonl"


@pytest.fixture(params=[fork_and_join, under_pressure])
def picture(request: pytest.FixtureRequest, path: Path) -> Picture:
    """One trace with arrows, and one with notes."""
    return picture_of(request.param(path))


class TestPerfetto:
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

    def test_a_process_is_a_request_and_a_thread_a_sequence(self, path: Path) -> None:
        """Each has a name."""
        events = [event for event in events_of(picture_of(fork_and_join(path))) if event["ph"] == "M"]
        names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if "name" in event["args"]}
        assert names == {(0, 0): "engine", (1, 1): "r", (1, 2): "r_child_0", (1, 3): "r_child_1"}

    def test_counters_have_blocks_and_sequences(self, picture: Picture) -> None:
        """Each step has one counter of each kind."""
        counters = [event for event in events_of(picture) if event["ph"] == "C"]
        num_steps = len(picture.streams[0].samples)
        kinds = ["KV blocks", "KV blocks unshared", "sequences"]
        assert Counter(event["name"] for event in counters) == dict.fromkeys(kinds, num_steps)
        blocks = [event["args"] for event in counters if event["name"] == "KV blocks"]
        assert {args["used"] + args["free"] for args in blocks} == {picture.streams[0].num_blocks}

    def test_the_end_has_the_text(self, path: Path) -> None:
        """It is the text of the whole output."""
        events = events_of(picture_of(fork_and_join(path)))
        texts = [event["args"]["text"] for event in events if event["ph"] == "i" and event["args"]]
        assert texts == ["abAB\nCDEFz", "AB", "CDEF"]

    def test_a_flow_without_a_bar_is_left_out(self, path: Path) -> None:
        """A child that was aborted at once has no bar."""
        stream = (events.Stream, {"block_size": 4, "num_blocks": 8})
        parent = (events.Arrived, {"sequence": "r", "num_prompt_tokens": 1, "prompt": None})
        fields = {"sequence": "c", "parent": "r", "position": 1, "num_prompt_tokens": 2}
        child = (events.Spawned, {**fields, "prefix_token_ids": (), "context": "parent", "is_detached": False})
        picture = picture_of(read(written(path, stream, parent, child)))
        assert len(picture.arrows) == 1
        assert [event for event in events_of(picture) if event["ph"] in "sf"] == []

    def test_an_arrow_looks_at_few_bars(self) -> None:
        """A parent may have many bars and arrows: an arrow takes O(log n) looks, and drawing takes one per bar."""
        parent, child = Lane("r", 0.0, 1), Lane("c", 0.0, 1)
        parent.bars = watched = WatchedBars(Bar("decode", second, second + 1, 1) for second in range(1024))
        child.bars = [Bar("decode", 0.0, 1024.0, 1)]
        arrows = tuple(Arrow("spawn", parent, second, child, second) for second in range(1000))
        picture = Picture("", Header(1, "", {}, 0.0), (parent, child), arrows, (), 1024.0)
        assert sum(event["ph"] in "sf" for event in events_of(picture)) == 2000
        assert watched.num_looks <= 1024 + 1000 * 12

    @pytest.mark.parametrize(("time", "bound"), [(1.0, 1e6), (2.0, 2e6 - 0.5), (3.5, None), (5.0, 5e6 - 0.5)])
    def test_an_arrow_is_bound_to_a_bar_that_lasts(self, time: float, bound: float | None) -> None:
        """A bar that takes no time cannot hold it; without a bar there is no flow."""
        parent, child = Lane("r", 0.0, 1), Lane("c", 0.0, 1)
        ends = [(0.0, 2.0), (2.0, 2.0), (4.0, 4.0), (4.5, 5.0), (5.0, 5.0)]
        parent.bars = [Bar("prefill", start, end, 1) for start, end in ends]
        child.bars = [Bar("decode", 0.0, 9.0, 1)]
        arrows = (Arrow("spawn", parent, time, child, time),)
        picture = Picture("", Header(1, "", {}, 0.0), (parent, child), arrows, (), 9.0)
        assert [event["ts"] for event in events_of(picture) if event["ph"] == "s"] == [bound] * (bound is not None)


class TestPage:
    def test_it_is_self_contained(self, picture: Picture) -> None:
        """It loads nothing, and its policy forbids it to."""
        page = to_html(picture)
        assert "{{" not in page
        assert "default-src 'none'" in page
        assert not {"src=", "href=", "@import", "url(", "fetch(", "import("} & set(page.split('"'))

    def test_a_text_cannot_end_its_element(self, path: Path) -> None:
        """The embedded data has no "<" at all."""
        picture = picture_of(fork_and_join(path))
        lane_of(picture).text = "</script><script>alert(1)</script><!--"
        page = to_html(picture)
        data = page.split('type="application/json">')[1].split("</script>")[0]
        assert json.loads(data)["lanes"][0]["text"] == "</script><script>alert(1)</script><!--"

    def test_a_name_is_escaped(self, path: Path) -> None:
        """A file may be called anything."""
        named = fork_and_join(path.with_name("<b>&.jsonl"))
        assert "<title>&lt;b&gt;&amp;.jsonl</title>" in to_html(picture_of(named))

    def test_a_long_text_is_cut(self, path: Path) -> None:
        """So a page of a thousand sequences can still be opened."""
        picture = picture_of(fork_and_join(path))
        lane_of(picture).text = "x" * 5000
        assert "x" * 2000 + " \\u2026" in to_html(picture)

    @pytest.mark.parametrize(("model", "shown"), [("org/model", "org/model"), ("/srv/models/tiny", "tiny")])
    def test_a_model_in_a_folder_is_shown_by_its_name(self, model: str, shown: str, path: Path) -> None:
        """The folder itself is not disclosed."""
        recorder.begin(str(path), model, SYNC_HOOKS)
        assert f"<p>{shown} · " in to_html(picture_of(read(path)))


def test_the_page_is_packed() -> None:
    """Files that are not modules are named to setuptools."""
    packed = read_configuration(ROOT / "pyproject.toml")["tool"]["setuptools"]["package-data"]["sequence_hooks.trace"]
    others = [
        file.name for file in (ROOT / "sequence_hooks/trace").iterdir() if file.is_file() and file.suffix != ".py"
    ]
    assert len(others) == 4
    assert all(any(fnmatch(name, pattern) for pattern in packed) for name in others)


class TestCommand:
    def test_it_imports_no_engine(self, path: Path) -> None:
        """It imports neither torch nor any module of vLLM."""
        fork_and_join(path)
        code = (
            "import runpy, sys\n"
            "try: runpy.run_module('sequence_hooks.trace', run_name='__main__')\n"
            "finally: print(*sys.modules)"
        )
        command = [sys.executable, "-c", code, str(path)]
        result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        imported = result.stdout.splitlines()[-1].split()
        assert not {"vllm", "torch", "transformers", "numpy"}.intersection(imported)

    def test_it_writes_both_beside_the_recording(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """It prints what each of them is for."""
        fork_and_join(path)
        assert main([str(path)]) == 0
        assert path.with_suffix(".html").read_text().startswith("<!DOCTYPE html>")
        assert json.loads(path.with_suffix(".perfetto.json").read_text())["traceEvents"]
        out, err = capsys.readouterr()
        assert [line.split(": ")[1] for line in out.splitlines()] == [
            "for any browser",
            "for ui.perfetto.dev or chrome://tracing",
        ]
        assert err == ""

    def test_it_writes_where_it_is_told_to(self, path: Path, tmp_path: Path) -> None:
        """Folders must exist."""
        fork_and_join(path)
        assert main([str(path), "--html", str(tmp_path / "a"), "--perfetto", str(tmp_path / "b")]) == 0
        assert {file.name for file in tmp_path.iterdir()} == {"run.jsonl", "a", "b"}

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

    def test_it_is_a_module_to_run(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """`python -m sequence_hooks.trace` runs it."""
        fork_and_join(path)
        monkeypatch.setattr(sys, "argv", ["trace", str(path)])
        monkeypatch.delitem(sys.modules, "sequence_hooks.trace.__main__")
        with pytest.raises(SystemExit) as exit:
            runpy.run_module("sequence_hooks.trace", run_name="__main__")
        assert exit.value.code == 0


def test_the_header_is_a_line_of_its_own(path: Path) -> None:
    """So an empty run has a trace, too."""
    recorder.begin(str(path), "a model", SYNC_HOOKS)
    recorded = read(path)
    assert isinstance(recorded.run, Header)
    assert picture_of(recorded).lanes == ()
    assert main([str(path)]) == 0
