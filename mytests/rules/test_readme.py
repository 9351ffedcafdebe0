# SPDX-License-Identifier: Apache-2.0
"""The README's example, on either engine."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mytests.harness.environment import EXAMPLES
from mytests.harness.installed import IS_V1
from mytests.harness.tiers import ON_V0_IN_FULL, cases

pytestmark = [pytest.mark.model, pytest.mark.floats, pytest.mark.every_release, *ON_V0_IN_FULL]
README = Path(__file__).resolve().parents[2] / "README.md"
IMPORT = "from sequence_hooks.v1 import LLM\n"
CHANGES = {"eager": ("special_kwargs=", "enforce_eager=True, special_kwargs="), "word for word": ("", "")}


@pytest.mark.parametrize("change", cases(CHANGES, ["eager"]) if IS_V1 else [(IMPORT, "from vllm import LLM\n")])
def test_the_readmes_ten_lines_print_what_it_says(change: tuple[str, str], tmp_path: Path) -> None:
    """On V1 beside what upstream prints of its own, where compiling takes the most time; on V0 with another import."""
    found = re.search(r"## Ten lines.*?```python\n(.*?)```\n\n```\n(.*?)```", README.read_text(), flags=re.S)
    assert found is not None
    program, printed = found.groups()
    assert program.startswith(IMPORT) and program.count("special_kwargs=") == 1
    path = tmp_path / "ten_lines.py"
    path.write_text(program.replace(*change) if change[0] else program)
    done = subprocess.run([sys.executable, str(path)], cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
