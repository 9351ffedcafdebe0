# SPDX-License-Identifier: Apache-2.0
"""Estimates what a token and a swapped block cost on this machine, from the durations of the engine's steps."""

import time
from collections import deque
from collections.abc import Callable

import numpy as np

_WINDOW = 128
_OUTLIER = 10
"""A step that took more than this many times the median is ignored: the engine was idle during it."""


class StepCosts:
    """Fits ``duration = constant + tokens * seconds_per_token + blocks * seconds_per_block`` to recent steps."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._steps: deque[tuple[float, int, int]] = deque(maxlen=_WINDOW)
        self._running: tuple[float, int, int] | None = None
        self._seconds_per_block: float | None = None

    def begin_step(self, num_tokens: int, num_swapped: int) -> None:
        """Start timing a step that computes ``num_tokens`` and copies ``num_swapped`` blocks out or in."""
        self._running = (self._clock(), num_tokens, num_swapped)

    def end_step(self) -> None:
        """Stop timing the step that began last, if any."""
        if self._running is not None:
            start, num_tokens, num_swapped = self._running
            self._steps.append((self._clock() - start, num_tokens, num_swapped))
            self._running = None
            if num_swapped:
                # From here on the cost of a block is known, even if no block is swapped for a long time.
                self.fit()

    def fit(self) -> tuple[float, float]:
        """Seconds per token, and per block copied in one direction.

        Until something is measured, a token costs one second and a block nothing, so that the first block
        swapped becomes the measurement.
        """
        steps = np.array(self._steps, dtype=float).reshape(-1, 3)
        steps = steps[steps[:, 0] <= _OUTLIER * np.median(steps[:, 0])] if len(steps) else steps
        if not steps[:, 1].sum():
            return 1.0, self._seconds_per_block or 0.0
        factors = np.column_stack([np.ones(len(steps)), steps[:, 1:]])
        _, per_token, per_block = np.linalg.lstsq(factors, steps[:, 0], rcond=None)[0]
        if steps[:, 2].any():
            self._seconds_per_block = max(float(per_block), 0.0)
        if per_token <= 0:
            per_token = steps[:, 0].sum() / steps[:, 1].sum()
        return float(per_token), self._seconds_per_block or 0.0
