# SPDX-License-Identifier: Apache-2.0
"""What the documentation points at exists: tests by node id, and files by link."""

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from build_tools.configuration_page import PAGE, page
from mytests.surgical import CharTokenizer
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.handlers import TokenHandler

ROOT = Path(__file__).parent.parent
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "TODO.md", "mytests/README.md")
PAGES = [
    *(ROOT / name for name in TOP),
    *sorted(path for top in ("docs", "examples") for path in ROOT.glob(f"{top}/**/*.md")),
]
NODE = re.compile(r"`(mytests/(?:\w+/)*test_\w+\.py)((?:::\w+)+)`")
TELLING = {"logger.warning", "logger.error", "logger.exception", "_refuse"}
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def names_in(path: Path) -> set[str]:
    """ "::test" and "::Class::test" for every function of a file."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(f"::{node.name}")
        elif isinstance(node, ast.ClassDef):
            found |= {f"::{node.name}::{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_points_at_exists(page: Path) -> None:
    """A renamed test or a moved file takes its references along."""
    text = page.read_text()
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    missing += [file + name for file, name in NODE.findall(text) if name not in names_in(ROOT / file)]
    assert missing == []


def test_every_rule_names_its_tests() -> None:
    """Rules 0 to 10, each with a test at least."""
    rules = re.split(r"^## ", (ROOT / "docs" / "internals" / "semantics.md").read_text(), flags=re.M)
    named = {int(rule.split(".")[0]): len(NODE.findall(rule)) for rule in rules if rule[:1].isdigit()}
    assert sorted(named) == list(range(14))
    assert all(named.values())


def test_the_code_of_extending_is_what_it_says() -> None:
    """A join function, and a handler with the public interface."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(), flags=re.S):
        exec(block, names)
    assert names["numbered"]([]) == []
    assert isinstance(names["Tool"](CharTokenizer()), TokenHandler)


def test_every_field_has_a_row_for_both_engines() -> None:
    """Of the table that compares V0 and V1."""
    table = (ROOT / "docs" / "engines.md").read_text().split("## ")[1]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| `")]
    assert all(len(row) == 3 and all(cell.strip() for cell in row) for row in rows)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert named == {field.name for field in dataclasses.fields(SpecialKwargs)}


def told_by(path: Path) -> list[str]:
    """Of each warning and error that a module logs, and of what hooks refuse, the longest part that never differs."""
    told = []
    for node in ast.walk(ast.parse(path.read_text())):
        message = node.args[0] if isinstance(node, ast.Call) and ast.unparse(node.func) in TELLING else None
        if path.name == "idle.py" and isinstance(node, ast.Return):
            message = node.value
        constants = [each.value for each in ast.walk(message or ast.Pass()) if isinstance(each, ast.Constant)]
        if any(isinstance(constant, str) for constant in constants):
            parts = [part for text in constants for part in re.split(r"%\S+|[<>`]", str(text))]
            told.append(max(parts, key=len).strip(" :;,"))
    return told


def test_every_message_is_explained() -> None:
    """On the page for troubles: what is logged above INFO, and what cannot work with hooks."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    modules = [path for top in ("vllm", "sequence_hooks") for path in (ROOT / top).rglob("*.py")]
    told = [message for path in modules if "_upstream" not in path.parts for message in told_by(path)]
    assert len(told) > 15
    assert [message for message in told if message[:60] not in page] == []


def test_the_configuration_page_is_that_of_the_code() -> None:
    """``python -m build_tools.configuration_page`` writes it anew."""
    assert (ROOT / PAGE).read_text() == page()
