# SPDX-License-Identifier: Apache-2.0
"""The questions that are asked: a text file, one on each line."""

from pathlib import Path

DEFAULT = Path(__file__).parent / "questions.txt"


def read_questions(path: Path, most: int) -> list[str]:
    """The first questions of a file.

    Raises:
        ValueError: it has fewer than ``most``.
    """
    found = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    if len(found) < most:
        raise ValueError(f"{path} has {len(found)} questions, and {most} are wanted; give --questions {len(found)}")
    return found[:most]
