# SPDX-License-Identifier: Apache-2.0
"""The first histories of `mytests.injection_fuzz`, on both engines."""

import pytest

from mytests.injection_fuzz import Seen, history_of

pytestmark = [pytest.mark.model, pytest.mark.floats]


LEAST, MOST = 30, 200
"""In histories."""


def test_random_histories_are_as_the_oracle_says() -> None:
    """Under pressure, with aborts and priorities; they go on until some have lost what was injected."""
    seen = Seen()
    while seen.histories < LEAST or (seen.histories < MOST and not seen.is_enough):
        seen.add(history_of(seen.histories))
    assert seen.is_enough, seen
