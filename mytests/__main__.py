# SPDX-License-Identifier: Apache-2.0
"""Runs the surgical suite with pytest, which says beside each case what its test states.

Tests marked "model" run only with --all. Other arguments are passed to pytest:
`python -m mytests -k abort`, `python -m mytests --all mytests/project/test_setup.py`.
"""

import argparse
import inspect
import sys
from typing import Any

import pytest


class Statements:
    """A plugin of pytest: tells how a case has ended with what its test states, and the command that repeats it."""

    def __init__(self) -> None:
        self._by_case: dict[str, str] = {}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        documented = inspect.getdoc(item.function) if isinstance(item, pytest.Function) else None
        self._by_case[item.nodeid] = " ".join((documented or "").split("\n\n")[0].split())

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        if report.when != "call":
            return None
        return report.outcome, "", f"{report.outcome.upper()}  {self._by_case.get(report.nodeid, '')}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for report in (*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")):
            terminalreporter.line(f"python -m pytest {report.nodeid}")


def main() -> int:
    """Run what the command line selects, and return pytest's exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m mytests", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="run those too that need a model")
    arguments, for_pytest = parser.parse_known_args()
    selected = [] if arguments.all else ["-m", "not model"]
    return int(pytest.main(["-v", *selected, *for_pytest], plugins=[Statements()]))


if __name__ == "__main__":
    sys.exit(main())
