# SPDX-License-Identifier: Apache-2.0
"""Sphinx's configuration of the documentation as a site: ``make docs``.

Its source folder is the root of the repository, so that the links of README and other pages hold on the site as they
hold on a code host.
"""

from pathlib import Path

from sphinx.application import Sphinx
from sphinx.ext.napoleon.docstring import GoogleDocstring

from docs.tools.site import node_ids_by_rule, toctrees, with_tests

ROOT = Path(__file__).parent.parent
INDEX = "docs/index"
RULES = "docs/internals/semantics"

project = "Sequence hooks for vLLM"
root_doc = "README"
include_patterns = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "TODO.md"),
    *("docs/**", "deploy/*.md", "examples/*/README.md"),
]
# Folders that are not worth a visit.
exclude_patterns = [".*", "benchmarks", "build", "dist", "mutants", "sequence_hooks", "vllm"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 6

# The reference is made in the fork's environment, where a stock vLLM cannot be imported.
autodoc_mock_imports = ["vllm"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
default_role = "py:obj"
# There is no network during a build, so the names of other packages have no pages to link to.
nitpick_ignore_regex = [("py:.*", r"(?!sequence_hooks\b).*")]
# The first is a type variable, which says that a class method returns an object of its class.
nitpick_ignore = [
    ("py:class", "sequence_hooks.config.special_kwargs.K"),
    # What observers are given; its module explains it.
    ("py:class", "sequence_hooks.tree.branch.Branch"),
]

html_theme = "furo"
html_title = project
html_extra_path = ["site"]
html_copy_source = False
html_show_sourcelink = False


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", read_sections)


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """On a code host pages are read without it: the first one names all others, and each rule has its tests."""
    if docname == root_doc:
        index = (ROOT / f"{INDEX}.md").read_text()
        source[0] += toctrees(index, INDEX, app.env.found_docs - {root_doc})
    elif docname == RULES:
        source[0] = with_tests(source[0], node_ids_by_rule(ROOT / "mytests"))


def read_sections(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Sections such as "Args:". An attribute's docstring has none; napoleon would take a colon in it for a type's."""
    if what not in ("attribute", "data", "property"):
        lines[:] = GoogleDocstring(lines).lines()
