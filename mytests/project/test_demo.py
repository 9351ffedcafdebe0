# SPDX-License-Identifier: Apache-2.0
"""The demo of surgical testing, and the runner's report: each as it is run by hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = """
tour
new sync_resume=manual
add r
step r=ab
run r=!a. r_child_0=B
resume r "hey"
run r=z
add s
step s=!
abort s
quit
show
"""
FAILING = '''
class TestSums:
    def test_a_sum(self):
        """Two and two are four."""
        assert 2 + 2 == 5
'''


def run_module(name: str, *arguments: str, commands: str = "") -> subprocess.CompletedProcess[str]:
    """What `python -m name` prints, with ``commands`` as its standard input."""
    return subprocess.run(
        [sys.executable, "-m", name, *arguments],
        input=commands,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )


def test_the_demo_shows_what_becomes_of_sequences_and_blocks() -> None:
    """A tour from spawn to merge; then a caller that resumes a sequence, an error in one line, and an abort."""
    result = run_module("mytests.harness.demo", commands=COMMANDS)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("free blocks: 16 of 16\n> quit\n")
    tour, others = result.stdout.split("> new sync_resume=manual")
    for piece in ("0* 1* 2*", "copy of block 2", "BLOCKED", "[BCD]z", "r prefills 4, samples z"):
        assert piece in tour
    for piece in ("r has 'ab'; give one character", "r waits for its caller: resume r", "[B][hey]z$"):
        assert piece in others
    assert others.count("FINISHED_ABORTED") == 2


def test_the_runner_tells_what_a_failing_test_states(tmp_path: Path) -> None:
    """With the assertion's message and the command that repeats it; the exit code is pytest's."""
    (tmp_path / "test_sums.py").write_text(FAILING)
    result = run_module("mytests", str(tmp_path / "test_sums.py"), f"--rootdir={tmp_path}")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "Two and two are four." in result.stdout
    assert "assert (2 + 2) == 5" in result.stdout
    assert "python -m pytest test_sums.py::TestSums::test_a_sum" in result.stdout
