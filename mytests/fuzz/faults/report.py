# SPDX-License-Identifier: Apache-2.0
"""The matrix of faults and tiers, as JSON and as a page; a run of one engine keeps the rows of the other."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mytests.fuzz.faults.fault import TIERS
from mytests.fuzz.faults.running import Row

SURVIVES = "SURVIVES"
COMMANDS = ("`make test`", "`make test-all` alone", "none")


def merged(path: Path, rows: Iterable[Row]) -> list[Row]:
    """The rows that ``path`` has, with those of the same faults replaced; in the order of engines and faults."""
    known = [Row(**each) for each in json.loads(path.read_text())] if path.exists() else []
    new = list(rows)
    renewed = {(row.engine, row.fault) for row in new}
    all_rows = [row for row in known if (row.engine, row.fault) not in renewed] + new
    return sorted(all_rows, key=lambda row: (row.engine, row.fault, TIERS.index(row.tier), row.net))


def write(folder: Path, rows: Sequence[Row], not_planted: Mapping[str, str]) -> None:
    """Write ``faults.json`` and ``faults.md``."""
    (folder / "faults.json").write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
    (folder / "faults.md").write_text(page(rows, not_planted))


def page(rows: Sequence[Row], not_planted: Mapping[str, str]) -> str:
    """A table for each engine, then what is not planted."""
    told = "Which test of which tier has noticed each, and which command runs it. `make faults` writes this page."
    lines = ["# Planted faults", "", told, ""]
    for engine in dict.fromkeys(row.engine for row in rows):
        own = [row for row in rows if row.engine == engine]
        lines += [
            f"## {engine}",
            "",
            summary(own),
            "",
            "| fault | what goes wrong | noticed by | surgical | model | fuzz |",
        ]
        lines.append("| --- | --- | --- | --- | --- | --- |")
        for fault in dict.fromkeys(row.fault for row in own):
            of_fault = [row for row in own if row.fault == fault]
            cells = [_cell([row for row in of_fault if row.tier == tier]) for tier in TIERS]
            lines.append(f"| {' | '.join([fault, of_fault[0].wrong, noticed_by(of_fault), *cells])} |")
        lines.append("")
    lines += ["## Not planted", "", *(f"- *{trap}*: {reason}" for trap, reason in not_planted.items())]
    return "\n".join(lines) + "\n"


def summary(rows: Sequence[Row]) -> str:
    """How many faults were planted, and how many of them each tier was to notice and has noticed."""
    faults = {row.fault for row in rows}
    survivors = sorted({row.fault for row in rows if row.caught_by is None})
    tiers = []
    for tier in TIERS:
        named = {row.fault for row in rows if row.tier == tier}
        caught = named - {row.fault for row in rows if row.tier == tier and row.caught_by is None}
        tiers.append(f"{tier} {len(caught)} of {len(named)}")
    told = f"; {SURVIVES}: {', '.join(survivors)}" if survivors else ""
    commands = [noticed_by([row for row in rows if row.fault == fault]) for fault in faults]
    by = ", ".join(f"{commands.count(command)} by {command}" for command in COMMANDS if command in commands)
    return f"{len(faults)} faults, noticed: {by}. {', '.join(tiers)}{told}."


def noticed_by(rows: Iterable[Row]) -> str:
    """The command that has told a fault: the sooner one if both do, as `make test-all` runs all of `make test`."""
    full = {row.is_full for row in rows if row.caught_by}
    return COMMANDS[0] if False in full else COMMANDS[1] if full else COMMANDS[2]


def _cell(rows: Sequence[Row]) -> str:
    """What the nets of one tier have said about a fault."""
    return "<br>".join(f"`{row.caught_by}`" if row.caught_by else f"{SURVIVES}: `{row.net}`" for row in rows)
