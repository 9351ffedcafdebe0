# SPDX-License-Identifier: Apache-2.0
"""Surgical engines of both kinds are stepped by hand, until something has happened or nothing is left to do."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any


class SteppedEngine(ABC):
    """An engine without a model, which samples the tokens that a test gives it."""

    outputs: Mapping[str, Any]
    """The latest output of each request."""

    @abstractmethod
    def step(self, tokens: Any) -> list[Any]:
        """Run one step, in which each sequence that samples gets its token from ``tokens``."""

    @abstractmethod
    def is_idle(self) -> bool:
        """Whether a step would do nothing."""

    @abstractmethod
    def statuses(self) -> dict[str, str]:
        """The status of every unfinished sequence, by request id."""

    def run(self, tokens: Any, max_steps: int = 200) -> int:
        """Step until all requests have finished, or wait for a caller; returns the number of steps.

        Raises:
            AssertionError: it takes more than ``max_steps``.
        """
        for step in range(max_steps):
            if self.is_idle():
                return step
            self.step(tokens)
        raise AssertionError(f"still unfinished after {max_steps} steps: {self.statuses()}")

    def run_until(self, is_reached: Callable[[], bool], tokens: Any, max_steps: int = 100) -> None:
        """Step until ``is_reached``.

        Raises:
            AssertionError: it takes more than ``max_steps``.
        """
        for _ in range(max_steps):
            if is_reached():
                return
            self.step(tokens)
        raise AssertionError(f"not reached after {max_steps} steps: {self.statuses()}")


def finished(engine: SteppedEngine, request_id: str = "r") -> Any:
    """The one completion of a request that has finished."""
    output = engine.outputs[request_id]
    assert output.finished
    return output.outputs[0]
