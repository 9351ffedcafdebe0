# SPDX-License-Identifier: Apache-2.0
"""Programs that a test makes: what a compiler, an interpreter or pip could say."""

from pathlib import Path


def program(path: Path, script: str) -> str:
    """The name of a shell script that stands at ``path``."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)
