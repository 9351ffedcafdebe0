# SPDX-License-Identifier: Apache-2.0
"""The README's example, on either engine."""

from pathlib import Path

import pytest

from mytests.harness.installed import IS_V1
from mytests.harness.readme import IMPORT, output_of, ten_lines
from mytests.harness.tiers import cases

pytestmark = [pytest.mark.model, pytest.mark.floats, pytest.mark.every_release]
CHANGES = {"eager": ("special_kwargs=", "enforce_eager=True, special_kwargs="), "word for word": ("", "")}


@pytest.mark.parametrize("change", cases(CHANGES, ["eager"]) if IS_V1 else [(IMPORT, "from vllm import LLM\n")])
def test_the_readmes_ten_lines_print_what_it_says(change: tuple[str, str], tmp_path: Path) -> None:
    """On V1 beside what upstream prints of its own, where compiling takes the most time; on V0 with another import."""
    program, printed = ten_lines()
    assert program.startswith(IMPORT) and program.count("special_kwargs=") == 1
    assert printed in output_of(program.replace(*change) if change[0] else program, tmp_path)
