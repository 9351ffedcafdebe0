# SPDX-License-Identifier: Apache-2.0
"""The costs of a token and of a swapped block, estimated from the durations of steps."""

import random
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from sequence_hooks.kv.step_costs import StepCosts

CONSTANT, PER_TOKEN, PER_BLOCK = 2e-3, 3e-5, 4e-4
Step = tuple[float, int, int]
"""Seconds, tokens, swapped blocks."""


@dataclass
class Clock:
    """A clock that stands still until it is moved on."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def measured(steps: Iterable[Step], clock: Clock | None = None, costs: StepCosts | None = None) -> StepCosts:
    """Costs that have seen ``steps``."""
    clock = clock or Clock()
    costs = costs or StepCosts(clock)
    for seconds, num_tokens, num_swapped in steps:
        costs.begin_step(num_tokens, num_swapped)
        clock.now += seconds
        costs.end_step()
    return costs


def synthetic(count: int, most_swapped: int = 20, noise: float = 0.0) -> list[Step]:
    """Steps that cost what the constants say, more or less."""
    draw, steps = random.Random(0), []
    for _ in range(count):
        num_tokens, num_swapped = draw.randint(1, 512), draw.randint(0, most_swapped)
        seconds = CONSTANT + num_tokens * PER_TOKEN + num_swapped * PER_BLOCK
        steps.append((seconds * draw.uniform(1 - noise, 1 + noise), num_tokens, num_swapped))
    return steps


EXACT = (PER_TOKEN, PER_BLOCK)
SLOWER = [(3 * seconds, num_tokens, num_swapped) for seconds, num_tokens, num_swapped in synthetic(128)]
COPYING = [(1e-2 + num_tokens * PER_TOKEN, num_tokens, 4) for num_tokens in range(1, 20)]
OTHERS = [(2e-2 + num_tokens * PER_TOKEN, num_tokens, 0) for num_tokens in range(1, 20)]
FITS = {
    "a step's constant cost is separated": (synthetic(16), EXACT),
    "only a window of the latest steps counts": (synthetic(128) + SLOWER, (3 * PER_TOKEN, 3 * PER_BLOCK)),
    "an idle minute, reported as one long step, is left out": ([*synthetic(20), (60.0, 1, 0), *synthetic(20)], EXACT),
    "without a measurement a block is cheaper than a token, so that the first eviction swaps": ([], (1.0, 0.0)),
    "steps that only copy say nothing about a token": ([(0.1, 0, 8), (0.1, 0, 8)], (1.0, 0.0)),
    "before the first swap a block costs nothing": (synthetic(16, most_swapped=0), (PER_TOKEN, 0.0)),
    "if longer steps had fewer tokens, a token costs the mean": (
        [(0.03, 10, 0), (0.02, 20, 0), (0.01, 30, 0)],
        (0.06 / 60, 0.0),
    ),
    "a block never costs less than nothing, though steps that copy are shorter": (COPYING + OTHERS, (PER_TOKEN, 0.0)),
}


@pytest.mark.parametrize(("steps", "costs"), FITS.values(), ids=FITS)
def test_costs_are_fitted_to_steps(steps: list[Step], costs: tuple[float, float]) -> None:
    """That of a token, and that of a swapped block."""
    assert measured(steps).fit() == pytest.approx(costs)


def test_noise_hides_neither_cost() -> None:
    """Durations that are up to 10 % off give both costs to within 10 %."""
    assert measured(synthetic(128, noise=0.1)).fit() == pytest.approx(EXACT, rel=0.1)


def test_a_step_that_never_began_does_not_end() -> None:
    """The first `end_step` of an engine measures nothing, nor does a second one after the same step."""
    clock = Clock()
    costs = StepCosts(clock)
    costs.end_step()
    measured(synthetic(16), clock, costs)
    clock.now += 0.01
    costs.end_step()
    assert costs.fit() == pytest.approx(EXACT)


def test_the_cost_of_a_block_is_remembered() -> None:
    """It stays as it was when the latest steps include no swap any more."""
    clock = Clock()
    costs = measured(synthetic(64), clock)
    costs.fit()
    measured(synthetic(128, most_swapped=0), clock, costs)
    assert costs.fit() == pytest.approx(EXACT)
