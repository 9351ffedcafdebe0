# SPDX-License-Identifier: Apache-2.0
"""Faults are really planted, so that none survives because it never was there."""

import pytest

from mytests.fuzz.faults import FAULTS, Edit
from mytests.fuzz.planting import changed, planted
from sequence_hooks.tree.merge import num_tokens

PLACE = "sequence_hooks.tree.merge:num_tokens"


@pytest.mark.parametrize("name", FAULTS)
def test_each_finds_what_it_replaces(name: str) -> None:
    """A refactoring that moves a function moves its fault."""
    with planted(name):
        pass


def test_it_is_there_wherever_the_function_was_imported() -> None:
    """And afterwards it is gone."""
    with changed(Edit(PLACE, "", "return -1")):
        assert num_tokens([]) == -1
    assert num_tokens([]) == 0
