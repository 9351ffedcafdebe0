# SPDX-License-Identifier: Apache-2.0
"""The trees of both engines are those that are on record, with which a device's are compared."""

import pytest
from agreement import all_answers, differing, recorded

pytestmark = [pytest.mark.model, pytest.mark.full, pytest.mark.floats]


def test_trees_are_as_recorded() -> None:
    """Token for token, in all modes and merges; `examples/agreement.py` shows where trees differ."""
    assert differing(all_answers(20), recorded()) == []
