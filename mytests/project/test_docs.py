# SPDX-License-Identifier: Apache-2.0
"""What the documentation points at exists: files and headings by link, tests by node id. It says what the code says."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin
from msgspec import Struct

from build_tools.configuration_page import PAGE, page
from docs.tools.site import node_ids_by_rule, with_tests
from mytests.harness.characters import CharTokenizer
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.notations import protocols
from sequence_hooks.handlers import TokenHandler
from sequence_hooks.trace.events import FORMAT_VERSION, Event, Header
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.events import Assembled, Blocked, Cancelled, Joined, Spawned
from sequence_hooks.v1 import releases

ROOT = Path(__file__).parents[2]
INTERNALS = ROOT / "docs" / "internals"
FIGURES = ROOT / "docs" / "figures"
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "TODO.md")
PAGES = [
    *(ROOT / name for name in TOP),
    *sorted(path for top in ("docs", "examples") for path in ROOT.glob(f"{top}/**/*.md")),
]
MODULES = [
    path for top in ("vllm", "sequence_hooks") for path in (ROOT / top).rglob("*.py") if "_upstream" not in path.parts
]
NODE = re.compile(r"`(mytests/(?:\w+/)*test_\w+\.py)((?:::\w+)+)`")
FILE = re.compile(
    r"`((?:benchmarks|build_tools|deploy|docs|examples|mytests|requirements|sequence_hooks|vllm)/[\w./-]+)"
)
TARGETS = re.compile(r"(?:`|\$ )make ([a-z -]*[a-z])")
RULE = re.compile(r"^([a-z][a-z -]*?) ?[:=]", flags=re.M)
RANGE = re.compile(r"\b(0\.\d\d) to (0\.\d\d)\b")
TELLING = {"logger.warning", "logger.error", "logger.exception", "_refuse"}


def names_in(path: Path) -> set[str]:
    """ "::test" and "::Class::test" for every function of a file."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(f"::{node.name}")
        elif isinstance(node, ast.ClassDef):
            found |= {f"::{node.name}::{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return found


def tokens(text: str) -> list[Token]:
    """Of Markdown; headings have the anchors that code hosts and the site give them."""
    return MarkdownIt("commonmark").enable("table").use(anchors_plugin, max_level=6).parse(text)


@cache
def anchors_of(path: Path) -> set[object]:
    return {token.attrGet("id") for token in tokens(path.read_text()) if token.type == "heading_open"}


def links_in(text: str) -> Iterator[str]:
    """Those within the repository."""
    for token in (inner for outer in tokens(text) for inner in outer.children or ()):
        target = str(token.attrGet("href") or token.attrGet("src") or "")
        if target and not re.match(r"\w+:", target):
            yield unquote(target)


def leads_nowhere(path: Path, link: str) -> bool:
    """Whether a link of the page at ``path`` names no file, or no heading of a page."""
    name, _, anchor = link.partition("#")
    target = path.parent / name if name else path
    return not target.exists() or (bool(anchor) and anchor not in anchors_of(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page: Path) -> None:
    """Links, tests, files and folders by their paths from the root, and targets of make."""
    text = page.read_text()
    targets = {word for rule in RULE.findall((ROOT / "Makefile").read_text()) for word in rule.split()}
    missing = [link for link in links_in(text) if leads_nowhere(page, link)]
    missing += [file + name for file, name in NODE.findall(text) if name not in names_in(ROOT / file)]
    missing += [f"make {name}" for named in TARGETS.findall(text) for name in named.split() if name not in targets]
    missing += [name for name in FILE.findall(text) if "_upstream" not in name and not (ROOT / name).exists()]
    assert missing == []


def test_every_rule_has_a_test() -> None:
    """Rules are numbered from 0 without a gap, and the site lists the tests that are marked with each."""
    page = (INTERNALS / "semantics.md").read_text()
    rules = [int(number) for number in re.findall(r"^## (\d+)\.", page, flags=re.M)]
    tests = node_ids_by_rule(ROOT / "mytests")
    assert rules == list(range(len(rules))) == sorted(tests)
    assert with_tests(page, tests).count("*Tests:* `mytests/") == len(rules)


def test_the_figures_of_the_readme_are_those_of_the_benchmark() -> None:
    """Injection, 8 children of the large model: against decoding in sequence, and against a client that caches."""
    speed_ups = (FIGURES / "benchmarks.md").read_text().split("Speed-up over decoding in sequence;")[1]
    (row, *_) = [line.split("|") for line in speed_ups.splitlines() if line.startswith("| 2048, 8 x 128 ")]
    in_sequence, over_caching = (float(row[column].strip(" x")) for column in (4, 10))
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"finish {in_sequence:.1f} times as fast" in readme and f"{over_caching:.2f} times as fast" in readme


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


def test_every_event_of_a_recording_has_a_row() -> None:
    """With its fields, but for the two that all lines have; and the page names the format's version."""
    page = (ROOT / "docs" / "trace.md").read_text()
    rows = [line.split(" | ", 1) for line in page.splitlines() if line.startswith("| `")]
    events: list[type[Struct]] = [Header, *Event.__subclasses__(), Spawned, Blocked, Cancelled, Joined, Assembled]
    for event in events:
        (meaning,) = [row[1] for row in rows if f"`{event.__struct_config__.tag}`" in row[0]]
        fields = set(event.__struct_fields__) - {"stream", "time"}
        fields |= set(ChildSpec.__struct_fields__) if event is Spawned else set()
        assert fields - set(re.findall(r"`(\w+)`", meaning)) == set()
    assert f"`version` of the format ({FORMAT_VERSION})" in page


def told_by(path: Path) -> list[str]:
    """Of each warning and error that a module logs, and of what hooks refuse, the longest part that never differs."""
    told = []
    for node in ast.walk(ast.parse(path.read_text())):
        message = node.args[0] if isinstance(node, ast.Call) and ast.unparse(node.func) in TELLING else None
        if path.name == "inert.py" and isinstance(node, ast.Return):
            message = node.value
        constants = [each.value for each in ast.walk(message or ast.Pass()) if isinstance(each, ast.Constant)]
        if any(isinstance(constant, str) for constant in constants):
            parts = [part for text in constants for part in re.split(r"%\S+|[<>`]", str(text))]
            told.append(max(parts, key=len).strip(" :;,"))
    return told


def test_every_message_is_explained() -> None:
    """On the page for troubles: what is logged above INFO, and what cannot work with hooks."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    told = [message for path in MODULES for message in told_by(path)]
    assert len(told) > 15
    assert [message for message in told if message[:60] not in page] == []


def texts_of(path: Path) -> Iterator[str]:
    """All texts of a module, with a gap where a value is put in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "\0".join(str(part.value) if isinstance(part, ast.Constant) else "" for part in node.values)
        elif isinstance(node, ast.Constant):
            yield re.sub(r"%\S", "\0", str(node.value))


def test_every_message_that_is_explained_exists() -> None:
    """The longest part that never differs of each sentence in the first columns of that page is one of our texts."""
    rows = [line for line in (ROOT / "docs" / "troubleshooting.md").read_text().splitlines() if line.startswith("| `")]
    quoted = [text for row in rows for text in re.findall("`([^`]+)`", row.split(" | ")[0]) if " " in text]
    parts = [max(re.split(r"<[^>]*>|…", text), key=len).strip(" :;,") for text in quoted]
    texts = "\n".join(text for path in MODULES for text in texts_of(path))
    assert len(parts) > 50
    assert [part for part in parts if part not in texts] == []


def test_the_configuration_page_is_that_of_the_code() -> None:
    """``python -m build_tools.configuration_page`` writes it anew."""
    assert (ROOT / PAGE).read_text() == page()


def one_line(path: Path) -> str:
    """The text of a page without its line breaks."""
    return " ".join(path.read_text().split())


def found_today(pattern: re.Pattern[str]) -> dict[str, set[Any]]:
    """What a pattern finds in each page that states what is true now; others state what was true or measured then."""
    then = {ROOT / "CHANGELOG.md", *FIGURES.glob("*.md")}
    found = {path.relative_to(ROOT).as_posix(): set(pattern.findall(one_line(path))) for path in {*PAGES} - then}
    return {name: each for name, each in found.items() if each}


def test_every_range_of_releases_is_that_of_the_plug_in() -> None:
    """It goes from the first to the last release of vLLM that is tested."""
    ranges = found_today(RANGE)
    assert {"README.md", "TODO.md", "docs/engines.md", "docs/install.md"} <= set(ranges)
    assert set().union(*ranges.values()) == {(releases.TESTED[0], releases.TESTED[-1])}, ranges


def test_each_release_is_treated_as_the_pages_say() -> None:
    """A tested one by its module, another as the last one that is tested."""
    rows = re.findall(r"^\| `(vllm_\w+)` \| (.*?) \|", (INTERNALS / "plugin.md").read_text(), flags=re.M)
    assert {release: module for module, each in rows for release in each.split(", ")} == releases.MODULES
    assert f"it is then treated as {releases.TESTED[-1]}." in one_line(ROOT / "docs" / "install.md")


POINTS = ("trigger", "context", "prefix", "positions", "end", "merge", "mask", "prompt", "limits", "checkpoints")
SOURCE = re.compile(r"^(guess|not known)|arXiv \d{4}\.\d{5}|pull request \d+|[\w./-]+\.(py|md|rs|txt|sh)\b")
"""A paper, or a file of a repository; or that there is none."""


def table_of(protocol: str) -> dict[str, tuple[str, str]]:
    """The rows of the notation's table on the page: what it is, and where it stands."""
    page = (ROOT / "docs" / "protocols.md").read_text()
    section = page.partition(f"### `{protocol}`: ")[2].partition("\n### ")[0].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" |")] for line in section.splitlines() if line[:1] == "|"]
    return {name: (what, where) for name, what, where in rows[2:]}


@pytest.mark.parametrize("protocol", protocols())
def test_each_point_has_a_source_or_is_a_guess(protocol: str) -> None:
    """A paper, a repository and its file, or the word that there is none; the table also says what was tried."""
    table = table_of(protocol)
    assert tuple(table) == (*POINTS, "tried")
    assert all(what for what, _ in table.values())
    assert [point for point in POINTS if not SOURCE.search(table[point][1])] == []
