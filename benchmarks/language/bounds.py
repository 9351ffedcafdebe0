# SPDX-License-Identifier: Apache-2.0
"""What each plan takes if nothing but the model's steps takes any time, by the steps of the same run.

    sequence    prefill of the prompt, then a step for each token
    client      prefill of the prompt, a step for each token of the outline, prefill of what asks for the points, and as
                many steps as the longest expansion has tokens
    skeleton    the same, and a prefill of the joined text

Questions at once are in the same phase at the same time. A step takes the longer, the more sequences decode in it.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.language.ways import Outcome


@dataclass(frozen=True)
class StepTimes:
    """Seconds of steps."""

    decode: dict[int, float]
    """By the number of sequences that decode."""

    prefilled_token: float

    @classmethod
    def of(cls, steps: Sequence[Any]) -> "StepTimes":
        """The median of decoding steps, and what a step takes more for each token that is prefilled in it."""
        alone: dict[int, list[float]] = defaultdict(list)
        for each in steps:
            if each.num_tokens == each.num_seqs > 0:
                alone[each.num_seqs].append(each.seconds)
        decode = {count: statistics.median(found) for count, found in alone.items()}
        times = cls(decode, 0.0)
        prefills = [each for each in steps if each.num_tokens > each.num_seqs]
        more = sum(each.seconds - times.step(each.num_seqs) for each in prefills)
        return cls(decode, max(0.0, more) / (sum(each.num_tokens - each.num_seqs for each in prefills) or 1))

    def step(self, count: int) -> float:
        """A step in which so many decode: measured, or between the nearest that were."""
        if not self.decode or not count:
            return 0.0
        low = max((each for each in self.decode if each <= count), default=min(self.decode))
        high = min((each for each in self.decode if each >= count), default=max(self.decode))
        if low >= high:
            return self.decode[low]
        share = (count - low) / (high - low)
        return self.decode[low] * (1 - share) + self.decode[high] * share

    def side_by_side(self, lengths: Sequence[int]) -> float:
        """Sequences of these lengths that begin together."""
        return sum(self.step(sum(length > done for length in lengths)) for done in range(max(lengths, default=0)))


def bound(times: StepTimes, outcomes: Sequence[Outcome], joins: bool) -> float:
    """Seconds until all of a group's answers have ended.

    Args:
        joins: Whether the expansions are prefilled once more.
    """
    num_prefilled = sum(each.num_prompt + each.num_prefix + joins * sum(each.lengths) for each in outcomes)
    if any(each.lengths for each in outcomes):
        outlines = times.side_by_side([each.num_outline for each in outcomes])
        expansions = times.side_by_side([length for each in outcomes for length in each.lengths])
        decoding = outlines + expansions
    else:
        decoding = times.side_by_side([each.num_tokens for each in outcomes])
    return decoding + num_prefilled * times.prefilled_token
