# SPDX-License-Identifier: Apache-2.0
"""The order of the documentation's pages on its site: that of the links in its index."""

import posixpath
import re
from collections.abc import Iterable

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
