# SPDX-License-Identifier: Apache-2.0
"""What a token and a swapped block cost on this machine, from the durations of the engine's own steps."""

import time
from collections import deque
from collections.abc import Callable

import numpy as np

_WINDOW = 128
_OUTLIER = 10
"""A step that took so many times the median was none: the engine was idle in it."""


class StepCosts:
    """Fits ``duration = constant + tokens * seconds_per_token + blocks * seconds_per_block`` to recent steps."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._steps: deque[tuple[float, int, int]] = deque(maxlen=_WINDOW)
        self._running: tuple[float, int, int] | None = None
        self._seconds_per_block: float | None = None

    def begin_step(self, num_tokens: int, num_swapped: int) -> None:
        """A step with ``num_tokens`` to compute, and ``num_swapped`` blocks to copy out or in, begins now."""
        self._running = (self._clock(), num_tokens, num_swapped)

    def end_step(self) -> None:
        """The step that began last, if any, has ended."""
        if self._running is not None:
            start, num_tokens, num_swapped = self._running
            self._steps.append((self._clock() - start, num_tokens, num_swapped))
            self._running = None
            if num_swapped:
                # Remembered from here on, however long no block is swapped.
                self.fit()

    def fit(self) -> tuple[float, float]:
        """Seconds for a token, and for a block copied one way.

        Where nothing was measured yet a token counts one second, and a block nothing: the first one swapped
        is the measurement.
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
