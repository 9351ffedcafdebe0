# SPDX-License-Identifier: Apache-2.0
"""Runs the surgical suite, and reports what each test states.

Tests marked "model" run only with --all. Other arguments are passed to pytest:
`python -m mytests -k abort`, `python -m mytests --all mytests/project/test_setup.py`.
"""

import argparse
import inspect
import io
import os
import shlex
import sys
import time
from dataclasses import dataclass, field

import pytest
from _pytest.terminal import TerminalReporter
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

MARKS = {"passed": ("✓", "green"), "failed": ("✗", "bold red"), "skipped": ("-", "yellow"), "": (" ", "")}
MAX_MESSAGE_LINES = 12


@dataclass
class TestLine:
    """One test function: its cases are one line of the report."""

    __test__ = False

    name: str
    statement: str
    outcomes: dict[str, str] = field(default_factory=dict)
    """The outcome of each case by node id; "" until it has run."""

    seconds: float = 0.0

    def add(self, report: pytest.TestReport) -> None:
        """Count one phase of a case; a failure in any of them fails it."""
        self.seconds += report.duration
        if self.outcomes[report.nodeid] != "failed" and (report.when == "call" or not report.passed):
            self.outcomes[report.nodeid] = report.outcome

    def count(self, outcome: str) -> int:
        """The cases with this outcome."""
        return list(self.outcomes.values()).count(outcome)

    def cells(self) -> tuple[Text, Text, Text, str, str]:
        """Mark, name, statement, cases and duration."""
        ran = [outcome for outcome in ("failed", "skipped", "passed") if self.count(outcome)]
        mark, style = MARKS[ran[0] if ran else ""]
        cases = f"{len(self.outcomes)} cases" if len(self.outcomes) > 1 else ""
        if cases and self.count("failed"):
            cases = f"{self.count('failed')} of {cases}"
        name, statement = Text(self.name, "red" if "failed" in ran else ""), Text(self.statement, "dim")
        return Text(mark, style), name, statement, cases, f"{self.seconds:.2f} s"


@dataclass
class Section:
    """One file: its lines by class, and how many of its cases have not run yet."""

    statement: str
    classes: dict[str, dict[str, TestLine]] = field(default_factory=dict)
    pending: int = 0


class Report:
    """A pytest plugin that prints a section as soon as its file is done, and the failures at the end."""

    def __init__(self, console: Console) -> None:
        self.own_words = io.StringIO()
        """The output of pytest's own reporter, shown if no test ran."""
        self._console = console
        self._sections: dict[str, Section] = {}
        self._lines: dict[str, TestLine] = {}
        self._failures: list[tuple[str, str, str]] = []
        self._status = console.status("collecting")
        self._start = time.monotonic()

    def print_summary(self) -> None:
        """Print each failure with its message and the command that reproduces it, and the totals."""
        self._status.stop()
        for file in list(self._sections):
            self._print_section(file)
        for node_id, place, message in self._failures:
            self._console.print()
            self._console.print(Text.assemble(("✗ ", "bold red"), (node_id, "bold")))
            self._console.print(Padding(Text(message), (0, 0, 0, 2)))
            self._console.print(Text(f"  at {place}" if place else "", "dim"), soft_wrap=True)
            self._console.print(Text(f"  python -m pytest {shlex.quote(node_id)}", "cyan"), soft_wrap=True)
        lines = {id(line): line for line in self._lines.values()}.values()
        counts = {outcome: sum(line.count(outcome) for line in lines) for outcome in ("passed", "failed", "skipped")}
        told = ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)
        seconds = time.monotonic() - self._start
        self._console.print(f"\n{told or 'nothing ran'} in {seconds:.1f} s; test functions: {len(lines)}", style="bold")

    @property
    def ran(self) -> bool:
        """Whether there is anything to report."""
        return bool(self._failures) or any(any(line.outcomes.values()) for line in self._lines.values())

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Redirect pytest's own reporter to a buffer: other plugins need it, so it cannot be removed."""
        plugins = config.pluginmanager
        plugins.unregister(name="terminalreporter")
        plugins.register(TerminalReporter(config, self.own_words), "terminalreporter")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Report a file that cannot be imported as a failure."""
        if report.failed:
            self._add_failure(report)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Create the sections and their lines."""
        for item in session.items:
            assert isinstance(item, pytest.Function)
            section = self._sections.setdefault(item.nodeid.split("::")[0], Section(_statement(item.module)))
            lines = section.classes.setdefault(item.cls.__name__ if item.cls else "", {})
            name = item.originalname
            line = lines.setdefault(name, TestLine(_words(name), _statement(item.function)))
            line.outcomes[item.nodeid] = ""
            section.pending += 1
            self._lines[item.nodeid] = line
        if session.items and not session.config.option.collectonly:
            self._status.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Show the running test, if the output is a terminal."""
        self._status.update(Text(nodeid, "dim"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of a test."""
        self._lines[report.nodeid].add(report)
        if report.failed:
            self._add_failure(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Print a section after its last test."""
        file = nodeid.split("::")[0]
        self._sections[file].pending -= 1
        if not self._sections[file].pending:
            self._print_section(file)

    def _add_failure(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message if crash else report.longreprtext
        lines = message.splitlines()
        if len(lines) > MAX_MESSAGE_LINES:
            lines = [*lines[:MAX_MESSAGE_LINES], "..."]
        place = f"{os.path.relpath(crash.path)}:{crash.lineno}" if crash else ""
        self._failures.append((report.nodeid, place, "\n".join(lines)))

    def _print_section(self, file: str) -> None:
        section = self._sections.pop(file)
        self._console.print(Text.assemble("\n", (file, "bold cyan"), "  ", (section.statement, "italic")))
        for class_name, lines in section.classes.items():
            if class_name:
                self._console.print(Text(f"  {class_name}", "bold"))
            table = Table.grid(padding=(0, 1), expand=True)
            table.add_column(width=1)
            table.add_column(ratio=1)
            table.add_column(ratio=1)
            table.add_column(justify="right", width=13)
            table.add_column(justify="right", width=8)
            for line in lines.values():
                table.add_row(*line.cells())
            self._console.print(Padding(table, (0, 0, 0, 4 if class_name else 2)))


def _statement(documented: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())


def _words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def _open_console() -> Console:
    """A console on a copy of standard output, which pytest captures while tests run."""
    file = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", errors="replace")
    return Console(file=file, highlight=False, width=None if file.isatty() else 120)


def main() -> int:
    """Run what the command line selects, and return pytest's exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m mytests", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="run those too that need a model")
    arguments, for_pytest = parser.parse_known_args()
    console = _open_console()
    report = Report(console)
    selected = [] if arguments.all else ["-m", "not model"]
    code = int(pytest.main([*selected, *for_pytest], plugins=[report]))
    if report.ran:
        report.print_summary()
    if not report.ran or code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        console.print(Text(report.own_words.getvalue()), end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
