# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.durations``: what took how long in the latest run of parts, as a page and in short.

`mytests.harness.timing` leaves a file for each pytest that a part runs. The setup of a test includes that of the
fixtures which it is the first to need; those that tests share are also listed by themselves.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_tools.ledger import LEDGER, clock, noted, whole

FOLDER = Path(__file__).resolve().parent.parent / "build" / "durations"
PAGE = "durations.md"
LIMITS = {"test": 20 * 60, "ci": 40 * 60}
"""Seconds that a run may take, by its name."""

_ON_THE_PAGE, _IN_SHORT = 40, 12
_WORTH_A_LINE = 0.05


@dataclass(frozen=True)
class Entry:
    """A test, or a fixture that tests share."""

    seconds: float
    name: str
    part: str

    @property
    def file(self) -> str:
        return self.name.split("::")[0]


def main() -> int:
    """Exit status."""
    if not (FOLDER / LEDGER).exists():
        print("error: nothing has run yet: make test", file=sys.stderr)
        return 1
    print(write(FOLDER))
    print(FOLDER / PAGE)
    return 0


def write(folder: Path) -> str:
    """Write the page of the run in ``folder``; returns it in short."""
    files = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    tests = [
        Entry(sum(phases.values()), name, file["part"]) for file in files for name, phases in file["tests"].items()
    ]
    fixtures = [Entry(seconds, name, file["part"]) for file in files for name, seconds in file["fixtures"].items()]
    title, seconds = whole(folder)
    (folder / PAGE).write_text(_page(folder, title, seconds, files, tests, fixtures))
    slowest = [f"{entry.seconds:7.1f}  {entry.name}" for entry in _slowest([*tests, *fixtures], _IN_SHORT)]
    return "\n".join(
        [*(["== slowest tests and fixtures, in seconds", *slowest] if slowest else []), took(title, seconds)]
    )


def took(title: str, seconds: float) -> str:
    """What a run took against what it may take; nobody overlooks that it took longer."""
    limit = LIMITS.get(title)
    if limit is None:
        return f"== {title} took {clock(seconds)}"
    told = f"== {title} took {clock(seconds)} and may take {clock(limit)}"
    return told if seconds <= limit else f"{'!' * 80}\n{told}: {clock(seconds - limit)} TOO LONG\n{'!' * 80}"


def _page(
    folder: Path, title: str, seconds: float, files: Sequence[Any], tests: Sequence[Entry], fixtures: Sequence[Entry]
) -> str:
    in_tests: dict[str, float] = defaultdict(float)
    for entry in tests:
        in_tests[entry.part] += entry.seconds
    collecting = {file["part"]: file["collected"] for file in files}
    parts = [
        (
            part.name,
            part.outcome,
            clock(part.seconds),
            _seconds(collecting.get(part.name)),
            _seconds(in_tests.get(part.name)),
        )
        for part in noted(folder)
    ]
    sums: dict[str, list[float]] = defaultdict(list)
    for entry in tests:
        sums[entry.file].append(entry.seconds)
    of_files = sorted(((sum(each), name, len(each)) for name, each in sums.items()), reverse=True)
    return "\n".join(
        [
            f"# Durations of `{title}`\n\n{took(title, seconds).strip('=! ')}\n\n## Parts\n",
            _table(("part", "outcome", "wall", "collecting, s", "tests, s"), parts),
            "\n## Slowest tests\n",
            _table(("s", "test", "part"), _rows(_slowest(tests, _ON_THE_PAGE))),
            "\n## Slowest fixtures that tests share\n",
            _table(("s", "fixture", "part"), _rows(_slowest(fixtures, _ON_THE_PAGE))),
            "\n## Files\n",
            _table(("s", "file", "tests"), [(_seconds(total), name, str(count)) for total, name, count in of_files]),
            "",
        ]
    )


def _slowest(entries: Iterable[Entry], number: int) -> list[Entry]:
    found = [entry for entry in entries if entry.seconds >= _WORTH_A_LINE]
    return sorted(found, key=lambda entry: entry.seconds, reverse=True)[:number]


def _rows(entries: Iterable[Entry]) -> list[tuple[str, str, str]]:
    return [(_seconds(entry.seconds), f"`{entry.name}`", entry.part) for entry in entries]


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
