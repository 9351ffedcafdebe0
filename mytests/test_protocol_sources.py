# SPDX-License-Identifier: Apache-2.0
"""For each published notation, where its text comes from: told beside its code, and on its page."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from sequence_hooks.config.notations import protocols

POINTS = ("trigger", "context", "prefix", "positions", "end", "merge", "mask", "prompt", "limits", "checkpoints")
ROWS = (*POINTS, "tried")
PAGE = Path(__file__).parents[1] / "docs/protocols.md"
SOURCE = re.compile(r"^(guess|not known)|arXiv \d{4}\.\d{5}|pull request \d+|[\w./-]+\.(py|md|rs|txt|sh)\b")
"""A paper, or a file of a repository; or that there is none."""


def sources_of(protocol: str) -> dict[str, str]:
    """What the notation's module says."""
    found: dict[str, str] = import_module(f"sequence_hooks.protocols.{protocol}").SOURCES
    return found


def table_of(protocol: str) -> dict[str, tuple[str, str]]:
    """The rows of the notation's table on the page: what it is, and where it stands."""
    section = PAGE.read_text().partition(f"### `{protocol}`: ")[2].partition("\n### ")[0].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" |")] for line in section.splitlines() if line[:1] == "|"]
    return {name: (what, where) for name, what, where in rows[2:]}


@pytest.mark.parametrize("protocol", protocols())
def test_each_point_has_a_source_or_is_a_guess(protocol: str) -> None:
    """A paper, a repository and its file, or the word that there is none."""
    sources = sources_of(protocol)
    assert tuple(sources) == POINTS
    assert [point for point, said in sources.items() if not SOURCE.search(said)] == []


@pytest.mark.parametrize("protocol", protocols())
def test_the_page_says_the_same(protocol: str) -> None:
    """In a table for each notation, which also says what was tried."""
    table = table_of(protocol)
    assert tuple(table) == ROWS
    assert all(what for what, _ in table.values())
    assert {point: where for point, (_, where) in table.items() if point in POINTS} == sources_of(protocol)
