# SPDX-License-Identifier: Apache-2.0
"""Programs that a test creates in place of a compiler, an interpreter or pip."""

from pathlib import Path


def program(path: Path, script: str) -> str:
    """Write a shell script to ``path``; returns its name."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)
