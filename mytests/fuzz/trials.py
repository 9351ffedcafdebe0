# SPDX-License-Identifier: Apache-2.0
"""What the fuzzer's own tests try on either engine."""

import pytest
from hypothesis import strategies as st

from mytests.fuzz.fuzzing import Failure, History, Tally, fuzz

SECONDS = 1_800
"""More than any of these takes on a busy machine; a fault that is not found ends with max_histories."""


def short_run(first_seed: int, size: int) -> Tally:
    """What is seen in at least ``size`` histories, which go on until each kind was among them.

    What the model samples decides what they come to, and processors round differently.
    """
    return fuzz(SECONDS, first_seed, 20 * size, is_enough=lambda seen: seen.histories >= size and not seen.unseen)


def first_failure(first_seed: int, max_histories: int, among: st.SearchStrategy[History]) -> Failure:
    """What is reported of a fault that is planted."""
    with pytest.raises(Failure) as failure:
        fuzz(SECONDS, first_seed, max_histories, shrinks=False, among=among)
    return failure.value
