# SPDX-License-Identifier: Apache-2.0
"""Tables in Markdown, where nothing may be needed that a vLLM does not bring."""

from collections.abc import Sequence


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    rule = [":--", *["--:"] * (len(headers) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headers, rule, *rows))
