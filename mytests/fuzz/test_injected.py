# SPDX-License-Identifier: Apache-2.0
"""The fuzzer finds injected KV to be as the oracle says, on the engine that is installed."""

import pytest

from mytests.fuzz.draw import injected
from mytests.fuzz.fuzzing import SECONDS, Failure, Tally, fuzz
from mytests.fuzz.planting import planted
from mytests.harness.installed import IS_V1
from mytests.harness.tiers import sizes

pytestmark = [pytest.mark.model, pytest.mark.floats]

# A seed draws other histories on each engine.
SEED = 4 if IS_V1 else 5
MAX_HISTORIES = 200
"""Histories, whatever they are."""


@sizes(8, 30)
def test_random_histories_are_as_the_oracle_says(size: int) -> None:
    """Under pressure, with aborts and priorities; they go on until some have lost what was injected."""

    def is_enough(seen: Tally) -> bool:
        return seen.histories >= size and seen.injected > 500 and seen.lost_injected > 0 and seen.replaced > 0

    assert is_enough(fuzz(SECONDS, SEED, MAX_HISTORIES, among=injected(), is_enough=is_enough))


@pytest.mark.full
def test_a_planted_fault_is_found() -> None:
    """KV at other positions than the join's own."""
    with planted("joined-after-the-last-child"), pytest.raises(Failure) as told:
        fuzz(SECONDS, SEED, MAX_HISTORIES, shrinks=False, among=injected())
    assert told.value.__cause__ is not None
