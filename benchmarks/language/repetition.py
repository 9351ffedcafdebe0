# SPDX-License-Identifier: Apache-2.0
"""How much an answer repeats itself, by its runs of three tokens."""

from collections.abc import Sequence


def distinct(token_ids: Sequence[int]) -> float:
    """The share of its runs that are different ones."""
    runs = _runs(token_ids)
    return len(set(runs)) / len(runs) if runs else 1.0


def num_alike(expansions: Sequence[Sequence[int]]) -> int:
    """How many expansions have at least half of their runs from one before."""
    earlier: list[set[tuple[int, ...]]] = []
    found = 0
    for each in expansions:
        runs = set(_runs(each))
        found += any(2 * len(runs & others) >= len(runs) > 0 for others in earlier)
        earlier.append(runs)
    return found


def _runs(token_ids: Sequence[int]) -> list[tuple[int, ...]]:
    return list(zip(token_ids, token_ids[1:], token_ids[2:], strict=False))
