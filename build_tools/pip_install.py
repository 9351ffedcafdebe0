# SPDX-License-Identifier: Apache-2.0
"""pip's install, without a word unless it fails."""

import subprocess
import sys
from collections.abc import Sequence

from build_tools.errors import SetupError


def pip_install(arguments: Sequence[str]) -> None:
    """Run pip's install.

    Raises:
        SetupError: pip failed; its own message is on standard error.
    """
    command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, check=False).returncode:
        raise SetupError("pip could not install what is needed; its own message is above")
