# SPDX-License-Identifier: Apache-2.0
"""For each published notation, its page says of each point where it stands."""

import re
from pathlib import Path

import pytest

from sequence_hooks.config.notations import protocols

POINTS = ("trigger", "context", "prefix", "positions", "end", "merge", "mask", "prompt", "limits", "checkpoints")
PAGE = Path(__file__).parents[2] / "docs/protocols.md"
SOURCE = re.compile(r"^(guess|not known)|arXiv \d{4}\.\d{5}|pull request \d+|[\w./-]+\.(py|md|rs|txt|sh)\b")
"""A paper, or a file of a repository; or that there is none."""


def table_of(protocol: str) -> dict[str, tuple[str, str]]:
    """The rows of the notation's table on the page: what it is, and where it stands."""
    section = PAGE.read_text().partition(f"### `{protocol}`: ")[2].partition("\n### ")[0].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" |")] for line in section.splitlines() if line[:1] == "|"]
    return {name: (what, where) for name, what, where in rows[2:]}


@pytest.mark.parametrize("protocol", protocols())
def test_each_point_has_a_source_or_is_a_guess(protocol: str) -> None:
    """A paper, a repository and its file, or the word that there is none; the table also says what was tried."""
    table = table_of(protocol)
    assert tuple(table) == (*POINTS, "tried")
    assert all(what for what, _ in table.values())
    assert [point for point in POINTS if not SOURCE.search(table[point][1])] == []
