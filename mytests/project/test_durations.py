# SPDX-License-Identifier: Apache-2.0
"""What took how long in a run of parts: measured by a plugin of pytest, joined on a page, and told at the end."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from build_tools import parts
from build_tools.durations import PAGE, took, write
from build_tools.ledger import Ran, begin, note
from mytests.harness import timing

ROOT = Path(__file__).parents[2]
TESTS = """
import os, time
import pytest

@pytest.fixture(scope="module", params=["one", "other"])
def shared(request):
    time.sleep(0.2)

@pytest.fixture
def own():
    pass

def test_it(shared, own):
    time.sleep(0.1)
    assert "RUNNING_PART" not in os.environ

def test_without():
    raise SystemError("as any test may")
"""


def timed(folder: Path, *options: str, part: str = "these/tests") -> list[dict[str, Any]]:
    """What the plugin writes when pytest runs `TESTS`."""
    (folder / "test_them.py").write_text(TESTS)
    variables = {timing.PART_VARIABLE: part, timing.FOLDER_VARIABLE: str(folder), "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "mytests.harness.timing",
        "-p",
        "xdist.plugin",
        *options,
        str(folder),
    ]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    environment.pop("PYTEST_ADDOPTS", None)
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout
    assert "1 failed, 2 passed" in result.stdout
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


@pytest.mark.parametrize("options", [("-n", "0"), ("-n", "1")], ids=["one process", "workers"])
def test_tests_and_shared_fixtures_are_measured(tmp_path: Path, options: tuple[str, ...]) -> None:
    """In this process and in workers; each test in three phases, and of the fixtures those that tests share."""
    (told,) = timed(tmp_path, *options)
    tests, fixtures = told["tests"], told["fixtures"]
    assert told["part"] == "these/tests" and 0 < told["collected"] < told["seconds"]
    assert set(tests) == {f"test_them.py::{name}" for name in ("test_it[one]", "test_it[other]", "test_without")}
    assert all(set(phases) == {"setup", "call", "teardown"} for phases in tests.values())
    assert tests["test_them.py::test_it[one]"]["call"] >= 0.1 and tests["test_them.py::test_it[one]"]["setup"] >= 0.2
    assert all(fixtures[f"test_them.py::shared[{case}]"] >= 0.2 for case in ("one", "other"))
    assert not [name for name in fixtures if name.endswith("own")]


def test_a_part_may_run_pytest_twice(tmp_path: Path) -> None:
    """Each has a file of its own."""
    timed(tmp_path)
    assert [told["part"] for told in timed(tmp_path)] == ["these/tests"] * 2


def test_without_a_part_nothing_is_written(tmp_path: Path) -> None:
    """A test that is run by hand leaves no file."""
    assert timed(tmp_path, part="") == []


def test_parts_and_plugin_name_the_same_variables() -> None:
    """The plug-in's environment does not have `build_tools`."""
    assert timing.PART_VARIABLE == parts.PART_VARIABLE and timing.FOLDER_VARIABLE == parts.FOLDER_VARIABLE


def test_the_page_has_what_took_how_long(tmp_path: Path) -> None:
    """Parts with their outcome, tests with all phases, shared fixtures, and sums by file; in short the slowest."""
    begin(tmp_path, "test")
    now = time.time()
    note(tmp_path, Ran("fork-tests", 1, now, 100.0))
    note(tmp_path, Ran("fork-alone", None, now + 100, 0.0))
    phases = {"setup": 1.0, "call": 20.0, "teardown": 0.5}
    told = {"part": "fork-tests", "seconds": 90.0, "collected": 10.0, "fixtures": {"a.py::engine": 7.0, "::quick": 0.0}}
    tests = {"a.py::test_x[a|b]": phases, "a.py::test_y": {"setup": 0.01}}
    (tmp_path / "fork-tests.json").write_text(json.dumps({**told, "tests": tests}))
    short = write(tmp_path).splitlines()
    assert short[1:] == ["   21.5  a.py::test_x[a|b]", "    7.0  a.py::engine", "== test took 1:40 and may take 20:00"]
    page = (tmp_path / PAGE).read_text()
    for row in (
        "| fork-tests | failed | 1:40 | 10.0 | 21.5 |",
        "| fork-alone | not run | 0:00 |  |  |",
        "| 21.5 | `a.py::test_x[a/b]` | fork-tests |",
        "| 7.0 | `a.py::engine` | fork-tests |",
        "| 21.5 | a.py | 2 |",
    ):
        assert row in page.splitlines()
    assert "quick" not in page


@pytest.mark.parametrize(
    ("title", "seconds", "told"),
    [
        ("test", 1200, ["== test took 20:00 and may take 20:00"]),
        ("test", 1205, ["!" * 80, "== test took 20:05 and may take 20:00: 0:05 TOO LONG", "!" * 80]),
        ("test-releases", 9000, ["== test-releases took 150:00"]),
    ],
)
def test_passing_the_limit_is_said_loudly(title: str, seconds: float, told: list[str]) -> None:
    """Of the runs that have one."""
    assert took(title, seconds).splitlines() == told
