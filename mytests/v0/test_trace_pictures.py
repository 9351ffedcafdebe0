# SPDX-License-Identifier: Apache-2.0
"""What becomes of a recorded run: a page, and the command that makes it and a Perfetto trace."""

import json
import runpy
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from setuptools.config.pyprojecttoml import read_configuration

from mytests.harness.surgical import SYNC_HOOKS
from mytests.harness.trace_inputs import UNTIL, forest
from mytests.harness.v0.recorded import fork_and_join, lane_of, under_pressure
from sequence_hooks.trace import recorder
from sequence_hooks.trace.__main__ import main
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.events import Header
from sequence_hooks.trace.lanes import Picture
from sequence_hooks.trace.page import SCRIPTS, to_html
from sequence_hooks.trace.reader import read

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a recording that is still to be made."""
    return tmp_path / "run.jsonl"


@pytest.fixture(params=[fork_and_join, under_pressure])
def picture(request: pytest.FixtureRequest, path: Path) -> Picture:
    """One trace with arrows, and one with notes."""
    return picture_of(request.param(path))


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

    def test_many_texts_are_cut_to_what_a_browser_opens(self) -> None:
        """Ten thousand may have 400 characters each."""
        picture = forest([0] * 100, num_children=99)
        lane_of(picture, "cmpl-0007").text = "x" * 500
        assert "x" * 400 + " \\u2026" in to_html(picture)

    def test_bars_are_durations(self) -> None:
        """In microseconds, which add up to the lane's end however the times are rounded."""
        picture = forest([1 / 3], num_children=0)
        data = json.loads(to_html(picture).split('type="application/json">')[1].split("</script>")[0])
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


def test_the_page_is_packed() -> None:
    """Files that are not modules are named to setuptools."""
    packed = read_configuration(ROOT / "pyproject.toml")["tool"]["setuptools"]["package-data"]["sequence_hooks.trace"]
    others = [
        file.name for file in (ROOT / "sequence_hooks/trace").iterdir() if file.is_file() and file.suffix != ".py"
    ]
    assert sorted(others) == sorted(["page.html", "page.css", "palette.css", *(f"{name}.js" for name in SCRIPTS)])
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
