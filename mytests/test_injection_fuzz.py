# SPDX-License-Identifier: Apache-2.0
"""The first histories of `mytests.injection_fuzz`, on both engines."""

import pytest

from mytests.injection_fuzz import Seen, history_of

pytestmark = pytest.mark.model


def test_random_histories_are_as_the_oracle_says() -> None:
    """Under pressure, with aborts and priorities; some lose what was injected."""
    seen = Seen()
    for seed in range(30):
        seen.add(history_of(seed))
    assert seen.injected_tokens > 500
    assert seen.lost > 0
