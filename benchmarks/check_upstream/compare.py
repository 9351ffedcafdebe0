# SPDX-License-Identifier: Apache-2.0
"""Compares one engine's sequences with another's."""

from dataclasses import dataclass, field
from typing import Any

# Two correct kernels may rank the two best tokens differently if their logprobs differ by less than this.
TIE = 1e-3


@dataclass
class Comparison:
    """What differs; ``largest`` is the greatest difference of two logprobs."""

    tokens: int = 0
    largest: float = 0.0
    ties: int = 0
    mismatches: list[str] = field(default_factory=list)


def compare(expected: list[dict[str, Any]], actual: list[dict[str, Any]], tolerance: float, tie: float) -> Comparison:
    """Compare token by token, up to a tie, after which the sequences have nothing in common.

    Args:
        tolerance: The most by which a logprob may be off.
        tie: Tokens may differ if the logprobs of the expected two best differ by less than this; 0 for never.
    """
    result = Comparison()
    if len(expected) != len(actual):
        result.mismatches.append(f"{len(actual)} sequences, expected {len(expected)}")
    for index, (left, right) in enumerate(zip(expected, actual, strict=False)):
        _compare_sequence(f"prompt {index}", left, right, tie, result)
    if result.largest > tolerance:
        result.mismatches.append(f"a logprob is off by {result.largest:.1e}")
    return result


def _compare_sequence(name: str, left: dict[str, Any], right: dict[str, Any], tie: float, result: Comparison) -> None:
    if len(left["tokens"]) != len(right["tokens"]):
        result.mismatches.append(f"{name}: {len(right['tokens'])} tokens")
        return
    for position, (token, other) in enumerate(zip(left["tokens"], right["tokens"], strict=True)):
        logprobs, others = left["logprobs"][position], right["logprobs"][position]
        if token != other:
            if _gap(logprobs) < tie:
                result.ties += 1
            else:
                result.mismatches.append(f"{name}, token {position}: {other}, expected {token}")
            return
        result.tokens += 1
        shared = logprobs.keys() & others.keys()
        result.largest = max(result.largest, *(abs(logprobs[t] - others[t]) for t in shared))


def _gap(logprobs: dict[str, float]) -> float:
    best, second = sorted(logprobs.values(), reverse=True)[:2]
    return best - second
