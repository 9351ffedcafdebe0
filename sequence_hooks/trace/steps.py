# SPDX-License-Identifier: Apache-2.0
"""What a scheduler tells its observer about its steps, whichever engine it belongs to."""

from dataclasses import dataclass

from sequence_hooks.trace.events import Step
from sequence_hooks.trace.observer import Observer


@dataclass(frozen=True)
class StepCounts:
    """StepCounts of blocks and of sequences at the start of a step."""

    num_used_blocks: int
    num_unshared_blocks: int
    """Blocks that all sequences together would hold if they shared none."""

    num_blocked: int
    num_waiting: int


class StepRecorder:
    """Notes each step, and the end of the last one before a pause, once."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._is_idle = True
        """Whether the latest noted step had nothing scheduled."""

    def note(self, start: float, prefill: list[tuple[str, int]], decode: list[str], counts: StepCounts) -> None:
        """Note that a step started at ``start`` or, with nothing scheduled, that the one before it has ended.

        Args:
            prefill, decode: See `Step`.
        """
        is_idle = not prefill and not decode
        # While a sequence waits for a caller, an engine may run empty steps again and again.
        if self._is_idle and is_idle:
            return
        self._is_idle = is_idle
        self._observer.note(
            Step,
            at=start,
            prefill=prefill,
            decode=decode,
            num_used_blocks=counts.num_used_blocks,
            num_unshared_blocks=counts.num_unshared_blocks,
            num_blocked=counts.num_blocked,
            num_waiting=counts.num_waiting,
        )
