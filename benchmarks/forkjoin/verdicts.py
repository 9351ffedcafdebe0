# SPDX-License-Identifier: Apache-2.0
"""Whether a target is met, as far as the rounds of a run can tell."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Literal

Verdict = Literal["met", "**missed**", "cannot tell"]
MIN_NOISE = 0.02
"""The least by which one round of the same work differs from another one on a shared machine."""
LONE_NOISE = 0.1
"""By which a single round may be wrong: it does not tell how far the next one would be from it.

The quartiles of nine rounds of one plan were 0.07 below and 0.06 above their median (docs/internals/plugin.md).
"""


def exact(is_met: bool) -> Verdict:
    """The verdict on a count, which is the same in every run."""
    return "met" if is_met else "**missed**"


def noise_of_control(ratios: Sequence[float]) -> float:
    """By which share a median of the same rounds may be wrong.

    Args:
        ratios: Of one side to a second process of the same side, for each round: 1 if nothing else had an influence.
    """
    return max(abs(statistics.median(ratios) - 1), noise_of_rounds(ratios))


def noise_of_rounds(values: Sequence[float]) -> float:
    """By which share the median of ``values``, one of each round, may be wrong: about its standard error."""
    if len(values) == 1:
        return LONE_NOISE
    low, middle, high = quartiles(values)
    return max(MIN_NOISE, (high - low) / middle) / math.sqrt(len(values))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile; a single value is all three."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return low, middle, high


def judge(value: float, is_met: Callable[[float], bool], noise: float) -> Verdict:
    """Whether a target is met by ``value``, whichever way it is wrong by ``noise``."""
    low, high = is_met(value * (1 - noise)), is_met(value * (1 + noise))
    return exact(is_met(value)) if low == high == is_met(value) else "cannot tell"
