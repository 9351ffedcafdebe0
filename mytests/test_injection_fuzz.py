# SPDX-License-Identifier: Apache-2.0
"""The first histories of `mytests.injection_fuzz`, on both engines."""

import pytest

from mytests.injection_fuzz import Seen, history_of
from mytests.tiers import sizes

pytestmark = [pytest.mark.model, pytest.mark.floats]


MAX_HISTORIES = 200
"""Histories, whatever they are."""


@sizes(8, 30)
def test_random_histories_are_as_the_oracle_says(size: int) -> None:
    """Under pressure, with aborts and priorities; they go on until some have lost what was injected."""
    seen = Seen()
    while seen.histories < size or (seen.histories < MAX_HISTORIES and not seen.is_enough):
        seen.add(history_of(seen.histories))
    assert seen.is_enough, seen
