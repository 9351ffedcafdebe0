# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens of two runs of a model that is not sure: the same up to the first tie, after which contexts differ."""

from collections.abc import Mapping, Sequence
from typing import Any

MIN_GAP = 1e-3
"""A token whose logprob is closer to the best one's may be sampled instead."""

NUM_LOGPROBS = 5
"""What a run must ask for, so that tokens which are as likely as the best one are among them."""

Logprobs = Sequence[Mapping[int, float]]


def is_same(ours: Sequence[int], theirs: Sequence[int], logprobs: Logprobs) -> bool:
    """Whether two runs have the same tokens, not just those before a tie; raises if they differ elsewhere."""
    for position, (own, other, likeliest) in enumerate(zip(ours, theirs, logprobs, strict=False)):
        if own != other:
            gap = likeliest[other] - likeliest.get(own, -float("inf"))
            assert gap < MIN_GAP, f"{own} at {position}, and the reference has {other}, likelier by {gap:.2g}"
            return False
    assert len(ours) == len(theirs), f"{len(ours)} tokens, and the reference has {len(theirs)}"
    return True


def logprobs_of(completion: Any) -> Logprobs:
    """Those of a completion of an engine."""
    return list(map(numbers, completion.logprobs))


def numbers(entry: Mapping[int, Any]) -> dict[int, float]:
    """The logprobs of an engine's entry, as numbers."""
    return {token_id: each.logprob for token_id, each in entry.items()}
