# SPDX-License-Identifier: Apache-2.0
"""Type checkers know the attributes of sequences, branches and schedulers, and report misspelled ones."""

from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
MISSPELLED = """
from vllm.core.hook_scheduler import HookScheduler
from vllm.core.hooked_sequence import V0Branch, V0Sequence
from vllm.sequence import Sequence


def of_the_rules(sequence: V0Sequence) -> int:
    return sequence.num_computed_token


def of_the_engine(sequence: Sequence) -> int:
    return sequence.get_output_length()


def of_a_branch(branch: V0Branch) -> int:
    return len(branch.childern)


def of_a_scheduler(scheduler: HookScheduler) -> int:
    return len(scheduler.bloked) + len(scheduler.runing)
"""


@pytest.mark.full
def test_misspelled_attributes_are_reported(tmp_path: Path) -> None:
    """Each of those that are planted, and nothing else."""
    planted = tmp_path / "planted.py"
    planted.write_text(MISSPELLED)
    said, errors, _ = api.run([str(planted), f"--config-file={ROOT / 'pyproject.toml'}", "--no-error-summary"])
    names = [line.split('has no attribute "')[1].split('"')[0] for line in said.splitlines()]
    assert names == ["num_computed_token", "get_output_length", "childern", "bloked", "runing"], (said, errors)
