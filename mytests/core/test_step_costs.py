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


def test_noise_hides_neither_cost() -> None:
    """Durations that are up to 10 % off give both costs to within 10 %."""
    assert measured(synthetic(128, noise=0.1)).fit() == pytest.approx((PER_TOKEN, PER_BLOCK), rel=0.1)


def test_without_noise_the_costs_are_exact() -> None:
    """A step's constant cost is separated from them."""
    assert measured(synthetic(16)).fit() == pytest.approx((PER_TOKEN, PER_BLOCK))


def test_only_the_latest_steps_count() -> None:
    """A machine that becomes three times as slow is measured anew after a window of steps."""
    slower = [(3 * seconds, num_tokens, num_swapped) for seconds, num_tokens, num_swapped in synthetic(128)]
    assert measured(synthetic(128) + slower).fit() == pytest.approx((3 * PER_TOKEN, 3 * PER_BLOCK))


def test_an_idle_gap_is_no_step() -> None:
    """A minute with nothing to do is reported as one long step, which is left out."""
    steps = [*synthetic(20), (60.0, 1, 0), *synthetic(20)]
    assert measured(steps).fit() == pytest.approx((PER_TOKEN, PER_BLOCK))


def test_a_step_that_never_began_does_not_end() -> None:
    """The first `end_step` of an engine measures nothing, nor does a second one after the same step."""
    clock = Clock()
    costs = StepCosts(clock)
    costs.end_step()
    measured(synthetic(16), clock, costs)
    clock.now += 0.01
    costs.end_step()
    assert costs.fit() == pytest.approx((PER_TOKEN, PER_BLOCK))


def test_without_a_measurement_a_block_is_cheaper_than_a_token() -> None:
    """So the first eviction swaps, and is measured."""
    assert StepCosts(Clock()).fit() == (1.0, 0.0)


def test_steps_without_tokens_are_no_measurement() -> None:
    """Steps that only copy say nothing about the cost of a token."""
    assert measured([(0.1, 0, 8), (0.1, 0, 8)]).fit() == (1.0, 0.0)


def test_before_the_first_swap_a_block_costs_nothing() -> None:
    """The token's cost is known by then."""
    assert measured(synthetic(16, most_swapped=0)).fit() == pytest.approx((PER_TOKEN, 0.0))


def test_a_slope_that_is_not_positive_gives_the_mean() -> None:
    """If longer steps had fewer tokens, a token costs the time of all steps divided by all their tokens."""
    assert measured([(0.03, 10, 0), (0.02, 20, 0), (0.01, 30, 0)]).fit() == pytest.approx((0.06 / 60, 0.0))


def test_a_block_never_costs_less_than_nothing() -> None:
    """It costs nothing if steps that copy are the shorter ones."""
    copying = [(1e-2 + num_tokens * PER_TOKEN, num_tokens, 4) for num_tokens in range(1, 20)]
    others = [(2e-2 + num_tokens * PER_TOKEN, num_tokens, 0) for num_tokens in range(1, 20)]
    assert measured(copying + others).fit() == pytest.approx((PER_TOKEN, 0.0))


def test_the_cost_of_a_block_is_remembered() -> None:
    """It stays as it was when the latest steps include no swap any more."""
    clock = Clock()
    costs = measured(synthetic(64), clock)
    costs.fit()
    measured(synthetic(128, most_swapped=0), clock, costs)
    assert costs.fit() == pytest.approx((PER_TOKEN, PER_BLOCK))
