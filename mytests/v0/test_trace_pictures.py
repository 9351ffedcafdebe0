# SPDX-License-Identifier: Apache-2.0
"""What becomes of a recorded run: a page, its colors, and the command that makes it and a Perfetto trace."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from mytests.harness.surgical import SYNC_HOOKS
from mytests.harness.trace_inputs import UNTIL, forest
from mytests.harness.v0.recorded import fork_and_join, lane_of, under_pressure
from sequence_hooks.trace import recorder
from sequence_hooks.trace.__main__ import main
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.events import Header
from sequence_hooks.trace.page import to_html
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

    def test_counts_have_units(self) -> None:
        """One is not many."""
        assert "1 request, 1 child, 40 steps in 4 s</p>" in to_html(forest([0], num_children=1))
        assert "1,000 requests, 0 children, 40 steps in 4 s</p>" in to_html(forest([0] * 1000, num_children=0))

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


ENOUGH = 4.5
"""The contrast that WCAG 2 asks of small texts (level AA)."""

ON = [
    *[("ink", ground) for ground in ("page", "stripe", "band", "found")],
    *[("faint", ground) for ground in ("page", "stripe", "band", "found")],
    *[("on-prefill", "prefill"), ("on-decode", "decode"), ("decode", "page"), ("unshared", "page")],
]


def palettes() -> dict[str, dict[str, str]]:
    """The colors of each mode, by name; dark mode replaces some of those of light mode."""
    light, dark = (files("sequence_hooks.trace") / "palette.css").read_text().split("@media")
    colors = [dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in (light, dark)]
    return {"light": colors[0], "dark": colors[0] | colors[1]}


def luminance(color: str) -> float:
    """The relative luminance of WCAG 2."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), ON)
def test_texts_stand_out(text: str, ground: str, mode: str) -> None:
    """Labels, axes, and the texts in bars."""
    palette = palettes()[mode]
    low, high = sorted(luminance(palette[name]) for name in (text, ground))
    assert (high + 0.05) / (low + 0.05) >= ENOUGH
