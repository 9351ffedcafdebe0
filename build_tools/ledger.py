# SPDX-License-Identifier: Apache-2.0
"""How the parts of the latest run went: a line of JSON for each in `LEDGER`, after one for the run itself."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LEDGER = "parts.jsonl"


@dataclass(frozen=True)
class Ran:
    """How a part went."""

    name: str
    """After the names of the parts that it is within."""

    status: int | None
    """Its exit status; None if it was not run."""

    begun: float
    """When, in seconds since the epoch."""

    seconds: float

    @property
    def outcome(self) -> str:
        """In a word or two."""
        return {0: "passed", None: "not run"}.get(self.status, "failed")


def begin(folder: Path, title: str) -> None:
    """Remove what earlier runs have noted in ``folder``, and note the name of this one."""
    for pattern in ("*.json", "*.failed", LEDGER):
        for file in folder.glob(pattern):
            file.unlink()
    _add(folder, {"title": title, "begun": time.time()})


def note(folder: Path, ran: Ran) -> None:
    """Add a part to the ledger of ``folder``; others may do so at the same time."""
    _add(folder, asdict(ran))


def noted(folder: Path, within: str = "") -> list[Ran]:
    """The parts in the ledger of ``folder``, or of those the ones within one, in the order in which they began."""
    _, *lines = _lines(folder)
    parts = sorted((Ran(**line) for line in lines), key=lambda part: part.begun)
    return [part for part in parts if part.name.startswith(f"{within}/")] if within else parts


def whole(folder: Path) -> tuple[str, float]:
    """The name of the run, and the seconds until its last part ended."""
    run, *lines = _lines(folder)
    return run["title"], max([line["begun"] + line["seconds"] for line in lines] or [run["begun"]]) - run["begun"]


def verdict(parts: Sequence[Ran]) -> str:
    """A line that names what failed, innermost parts only, and what was not run because of it."""
    lines = []
    for outcome in ("failed", "not run"):
        names = [part.name for part in parts if part.outcome == outcome]
        inner = [name for name in names if not any(other.startswith(f"{name}/") for other in names)]
        lines += [f"{outcome}: {', '.join(inner)}"] if inner else []
    return "; ".join(lines)


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _add(folder: Path, line: dict[str, Any]) -> None:
    with (folder / LEDGER).open("a") as file:
        file.write(json.dumps(line) + "\n")


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LEDGER).read_text().splitlines()]
