# SPDX-License-Identifier: Apache-2.0
"""The README's example on a current vLLM."""

from pathlib import Path

import pytest

from mytests.harness.readme import output_of, ten_lines
from mytests.harness.tiers import cases

pytestmark = [pytest.mark.model, pytest.mark.floats, pytest.mark.every_release]


@pytest.mark.parametrize("more", cases({"eager": "enforce_eager=True, ", "word for word": ""}, ["eager"]))
def test_the_readmes_ten_lines_print_what_it_says(more: str, tmp_path: Path) -> None:
    """Beside what upstream prints of its own; to compile the model takes most of the time."""
    program, printed = ten_lines()
    assert program.count("special_kwargs=") == 1
    assert printed in output_of(program.replace("special_kwargs=", f"{more}special_kwargs="), tmp_path)
