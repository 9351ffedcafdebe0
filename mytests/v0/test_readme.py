# SPDX-License-Identifier: Apache-2.0
"""The README's example on the fork."""

from pathlib import Path

import pytest

from mytests.harness.readme import IMPORT, output_of, ten_lines

pytestmark = [pytest.mark.model, pytest.mark.floats]


def test_the_readmes_ten_lines_hold_for_the_fork(tmp_path: Path) -> None:
    """Word for word but for the import of `LLM`."""
    program, printed = ten_lines()
    assert program.startswith(IMPORT)
    assert printed in output_of(program.replace(IMPORT, "from vllm import LLM\n"), tmp_path)
