# SPDX-License-Identifier: Apache-2.0
"""The README's example on a current vLLM, word for word."""

from pathlib import Path

import pytest

from mytests.readme import output_of, ten_lines

pytestmark = [pytest.mark.model, pytest.mark.floats, pytest.mark.every_release]


def test_the_readmes_ten_lines_print_what_it_says(tmp_path: Path) -> None:
    """Beside what upstream prints of its own."""
    program, printed = ten_lines()
    assert printed in output_of(program, tmp_path)
