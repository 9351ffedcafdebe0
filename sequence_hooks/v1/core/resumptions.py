# SPDX-License-Identifier: Apache-2.0
"""What callers give to sequences that wait for them.

Such a sequence is in no queue, so a pause of upstream's engine is complete while it waits. From then on nothing may run
until the engine is to go on: its weights may be changed.
"""

from collections import deque
from logging import Logger

from sequence_hooks.tree.driver import ForkJoinDriver
from sequence_hooks.v1.core.lockstep import PendingDummyStep
from sequence_hooks.v1.core.sequence import V1Sequence
from vllm.v1.core.sched.interface import PauseState


class Resumptions:
    """Resumes the sequences that callers have resumed, in this order, while the engine is not paused."""

    def __init__(self, driver: ForkJoinDriver[V1Sequence], pending_step: PendingDummyStep, logger: Logger) -> None:
        self._driver, self._pending_step, self._logger = driver, pending_step, logger
        self._left: deque[tuple[str, list[int]]] = deque()

    def append(self, request_id: str, token_ids: list[int]) -> None:
        """Add one: the engine's id of a sequence, and what it gets after its children's results."""
        self._left.append((request_id, token_ids))

    def carry_out(self, pause_state: PauseState) -> None:
        """Resume all of them, unless the engine is paused."""
        while self._left and pause_state == PauseState.UNPAUSED:
            self._pending_step.begin()
            try:
                self._driver.resume(*self._left.popleft())
            except ValueError as error:
                # The front end has checked it: the sequence was aborted meanwhile.
                self._logger.debug("%s", error)
