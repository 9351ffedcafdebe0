# SPDX-License-Identifier: Apache-2.0
"""What each plan takes if nothing but the model's steps takes any time, by the steps of the same run.

    sequence    prefill of the prompt, then a step for each token
    client      prefill of the prompt, a step for each token of the outline, prefill of what asks for the points, and as
                many steps as the longest expansion has tokens
    skeleton    the same
    trained     the same, but an expansion begins where it is promised, while the outline goes on

Where something follows the expansions, they are prefilled for it, and it takes a step for each of its tokens. Questions
at once begin together. A step takes the longer, the more sequences decode in it.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from benchmarks.language.measure import Step
from benchmarks.language.ways import Outcome


@dataclass(frozen=True)
class StepTimes:
    """Seconds of steps."""

    decode: dict[int, float]
    """By the number of sequences that decode."""

    prefilled_token: float

    @classmethod
    def of(cls, steps: Sequence[Step]) -> "StepTimes":
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


def counts(outcome: Outcome) -> list[int]:
    """How many sequences decode in each step of an answer's plan."""
    if not outcome.lengths:
        return [1] * (outcome.num_outline or outcome.num_tokens)
    spans = [(0, outcome.num_outline)]
    spans += [(start, start + length) for start, length in zip(outcome.starts, outcome.lengths, strict=True)]
    num_joined = max(end for _, end in spans)
    joined = [sum(start <= step < end for start, end in spans) for step in range(num_joined)]
    return joined + [1] * outcome.num_closing


def bound(times: StepTimes, outcomes: Sequence[Outcome]) -> float:
    """Seconds until all of a group's answers have ended."""
    decoding = sum(times.step(sum(each)) for each in zip_longest(*map(counts, outcomes), fillvalue=0))
    num_prefilled = sum(
        each.num_prompt + each.num_prefix + (sum(each.lengths) if each.num_closing else 0) for each in outcomes
    )
    return decoding + num_prefilled * times.prefilled_token
