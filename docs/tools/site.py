# SPDX-License-Identifier: Apache-2.0
"""What the documentation's site adds to its pages: their order, and the tests behind each rule."""

import ast
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_RULE = re.compile(r"^## (\d+)\. .*\n", flags=re.M)
_LINK = re.compile(r"\]\(([^):#]+)\.md[)#]")


def toctrees(index: str, name: str, found: Iterable[str]) -> str:
    """Sphinx's tables of contents: a section for each of the index, and one for the pages that it leaves out.

    So the order stands once, in plain Markdown, and a new page is on the site before anyone has linked it.

    Args:
        index: The index as Markdown.
        name: Its own name as a document, such as "docs/index".
        found: The names of all documents but the one that the result is for.
    """
    sections = {"Overview": [name]}
    for section in index.split("\n## ")[1:]:
        targets = (posixpath.normpath(f"{posixpath.dirname(name)}/{link}") for link in _LINK.findall(section))
        sections[section.split("\n")[0]] = list(dict.fromkeys(targets))
    listed = {page for pages in sections.values() for page in pages}
    sections["More"] = sorted(set(found) - listed)
    return "".join(_toctree(caption, pages) for caption, pages in sections.items() if pages)


def _toctree(caption: str, pages: Iterable[str]) -> str:
    entries = "".join(f"/{page}\n" for page in pages)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}```\n"


def node_ids_by_rule(tests: Path) -> dict[int, list[str]]:
    """The node ids below a folder of tests that have ``@pytest.mark.rule(NUMBER)``, by the number of the rule."""
    found = defaultdict(list)
    for path in sorted(tests.rglob("test_*.py")):
        name = path.relative_to(tests.parent).as_posix()
        for node_id, node in _tests_in(ast.parse(path.read_text()), name):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.rule":
                    for number in mark.args:
                        found[ast.literal_eval(number)].append(node_id)
    return dict(found)


def _tests_in(node: ast.AST, name: str) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield f"{name}::{child.name}", child
            yield from _tests_in(child, f"{name}::{child.name}")


def with_tests(page: str, tests: Mapping[int, Iterable[str]]) -> str:
    """The page of the rules, with a list below the heading of each."""
    return _RULE.sub(lambda heading: f"{heading[0]}\n{_listed(tests[int(heading[1])])}", page)


def _listed(node_ids: Iterable[str]) -> str:
    return f"*Tests:* {', '.join(f'`{each}`' for each in node_ids)}.\n"
