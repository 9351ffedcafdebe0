# SPDX-License-Identifier: Apache-2.0
"""Writes docs/configuration.md from the fields of `SpecialKwargs`, so that the page and the code say the same.

python -m build_tools.configuration_page
"""

from pathlib import Path

from sequence_hooks.config.docs import FieldDoc, field_docs

PAGE = Path("docs/configuration.md")
HEAD = """\
# Configuration

All fields of `SpecialKwargs`. `build_tools/configuration_page.py` writes this page from the code, and a test compares
them. Which engine has what of a field is in [engines.md](engines.md); what the fields mean together, in
[semantics.md](internals/semantics.md).

They can be given

- in Python, as an object or a dict: `LLM(model, special_kwargs={"protocol": "npr"})`, where `LLM` is `vllm.LLM` on the
  fork and `sequence_hooks.v1.LLM` with the plug-in; asynchronous engines take it in `from_engine_args`;
- to a framework that makes upstream's engines itself, with the plug-in: as its arguments
  `**sequence_hooks.v1.engine_args({"protocol": "npr"})`;
- on every command line that takes engine arguments, as JSON: `--special-kwargs '{"protocol": "npr"}'`;
- from a file: `--special-kwargs @hooks.json`;
- one by one: `--special-kwargs.protocol npr --special-kwargs.max_children 8`.

`python -m sequence_hooks check MODEL --special-kwargs ...` says in seconds, without loading weights, whether they fit a
model.

| field | type | default | meaning |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The page as Markdown."""
    return HEAD + "".join(map(_row, field_docs()))


def _row(field: FieldDoc) -> str:
    cells = f"`{field.name}`", f"`{field.kind}`", f"`{field.default}`", field.meaning.replace("``", "`")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
