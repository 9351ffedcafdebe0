# SPDX-License-Identifier: Apache-2.0
"""The example at the top of the README, as a program, and what it says that this prints."""

import re
import subprocess
import sys
from pathlib import Path

from mytests.harness.environment import EXAMPLES

IMPORT = "from sequence_hooks.v1 import LLM\n"
"""The line that the fork has another one for."""

_README = Path(__file__).resolve().parents[2] / "README.md"


def ten_lines() -> tuple[str, str]:
    found = re.search(r"## Ten lines.*?```python\n(.*?)```\n\n```\n(.*?)```", _README.read_text(), flags=re.S)
    assert found is not None
    return found[1], found[2]


def output_of(program: str, folder: Path) -> str:
    """What ``program`` prints, run as a user does: as a file (in ``folder``), where the models are."""
    path = folder / "ten_lines.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, str(path)], cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
