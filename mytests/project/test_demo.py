# SPDX-License-Identifier: Apache-2.0
"""The demo of surgical testing, and the runner's report."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mytests.harness.demo import TOUR, Demo

ROOT = Path(__file__).parents[2]
MANUAL = "new sync_resume=manual"
FAILING = '''
class TestSums:
    def test_a_sum(self):
        """Two and two are four."""
        assert 2 + 2 == 5
'''


class Shown:
    """A demo, and what it prints."""

    def __init__(self) -> None:
        self.file = io.StringIO()
        self.demo = Demo(Console(file=self.file, highlight=False, width=120))

    def after(self, *commands: str) -> str:
        """What the last of ``commands`` prints."""
        for command in commands:
            self.file.seek(0)
            self.file.truncate()
            assert not self.demo.onecmd(command)
        return self.file.getvalue()


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


class TestDemo:
    def test_the_tour_ends_with_all_blocks_free(self) -> None:
        """The tour shows shared blocks, copy on write, the BLOCKED parent, the merge and the short prefill."""
        shown = Shown()
        told = shown.after("tour")
        for piece in ("0* 1* 2*", "copy of block 2", "BLOCKED", "[BCD]z", "r prefills 4, samples z"):
            assert piece in told
        assert told.count("> ") == len(TOUR)
        assert told.endswith("free blocks: 16 of 16\n")
        shown.demo.engine.assert_empty()

    def test_commands_move_a_parent_through_its_statuses(self) -> None:
        """It is WAITING, RUNNING, BLOCKED at the sync, RUNNING after the join, and finished."""
        shown, seen = Shown(), []
        for command in ("add r", "step r=!", "step r=. r_child_0=B", "step r_child_0=$", "step r=z", "step r=$"):
            shown.after(command)
            seen.append(shown.demo._seen()["r"][0])
        assert seen == ["WAITING", "RUNNING", "BLOCKED", "BLOCKED", "RUNNING", "FINISHED_STOPPED"]
        assert "[B]z$" in shown.after("show")

    def test_run_goes_on_where_the_steps_ended(self) -> None:
        """The text in `run` is what a sequence samples from then on."""
        told = Shown().after("add r", "step r=a", "run r=!b.z r_child_0=BC")
        assert "|a!b.[BC]z$" in told

    def test_a_caller_resumes_with_a_text(self) -> None:
        """With sync_resume=manual, `run` stops when a sequence waits for its caller."""
        shown = Shown()
        assert "r waits for its caller: resume r" in shown.after(MANUAL, "add r", "run r=a.")
        assert "[hey]z$" in shown.after('resume r "hey"', "run r=z")

    def test_an_abort_takes_the_children_along(self) -> None:
        """Parent and child are FINISHED_ABORTED, and every block is free."""
        told = Shown().after("add r", "step r=!", "step", "abort r")
        assert told.count("FINISHED_ABORTED") == 2
        assert "free blocks: 16 of 16" in told

    @pytest.mark.parametrize(
        ("command", "told"),
        [
            ("step q=a", "there is no sequence 'q'; there are r"),
            ("step r=ab", "r has 'ab'; give one character"),
            ("step r", "'r' is no NAME=VALUE"),
            ("abort q", "there is no sequence 'q'; there are r"),
            ("resume r", "request_id is 'r', and no such sequence waits"),
            ("add r", "the id 'r' is taken"),
            ('add s ""', "the prompt is ''"),
            ("add s max_tokens=0", "max_tokens must be at least 1, got 0"),
            ('add s "a', "a quote that is not closed"),
            ("new block_size=0", "block_size is '0'; give a whole number from 1"),
            ("new prefix_caching=yes", "prefix_caching is 'yes'; give on or off"),
            ("new block_on=always", "block_on is 'always'; use 'promise' or 'sync' or 'never'"),
            ("new colour=red", "there is no option 'colour'"),
            ("jump", "there is no command 'jump'; help lists them"),
        ],
    )
    def test_an_error_names_the_value_and_changes_nothing(self, command: str, told: str) -> None:
        """An error is one message, without a table or a traceback."""
        shown = Shown()
        shown.after("add r")
        assert told in " ".join(shown.after(command).split())
        assert list(shown.demo._seen()) == ["r"]

    def test_commands_come_from_standard_input(self) -> None:
        """The tour runs from a pipe, with an exit code of 0."""
        result = run_module("mytests.harness.demo", commands="tour\nquit\nshow\n")
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.endswith("free blocks: 16 of 16\n> quit\n")


class TestRunner:
    @pytest.mark.full
    def test_the_report_has_a_line_for_each_test(self) -> None:
        """A line has name, statement and number of cases; the exit code is pytest's."""
        result = run_module("mytests", "mytests/rules/test_accounting.py", "-k", "merged_tokens_do_not_count")
        assert result.returncode == pytest.ExitCode.OK
        assert "✓ merged tokens do not count as sampled" in result.stdout
        assert "The parent samples max_tokens tokens itself" in result.stdout
        assert "4 cases" in result.stdout
        assert "test functions: 1" in result.stdout

    def test_a_failure_comes_with_the_command_that_repeats_it(self, tmp_path: Path) -> None:
        """A failure shows the assertion's message and its place; the exit code is pytest's."""
        (tmp_path / "test_sums.py").write_text(FAILING)
        result = run_module("mytests", str(tmp_path / "test_sums.py"), f"--rootdir={tmp_path}")
        assert result.returncode == pytest.ExitCode.TESTS_FAILED
        assert "Two and two are four." in result.stdout
        assert "assert (2 + 2) == 5" in result.stdout
        assert "python -m pytest test_sums.py::TestSums::test_a_sum" in result.stdout

    @pytest.mark.full
    def test_nothing_to_run_is_told_by_pytest(self) -> None:
        """If no test is selected, the message and the exit code are pytest's own."""
        result = run_module("mytests", "mytests/rules/test_accounting.py", "-k", "no_such_test")
        assert result.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
        assert "deselected" in result.stdout
