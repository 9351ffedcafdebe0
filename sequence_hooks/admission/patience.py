# SPDX-License-Identifier: Apache-2.0
"""How long a request waits before others make room for it."""

from collections.abc import Hashable

STEPS_OF_PATIENCE = 4
"""For how many steps a request waits for a row to become free by itself."""

STEPS_OF_PATIENCE_FOR_KV = 64
"""The same where KV is short; also for how many steps after a shortage KV still counts as short."""


class Patience:
    """Whether the request at the head has waited for long enough to take the row, or the KV, of another tree's child.

    Args:
        num_steps: For how many steps it has to wait.
    """

    def __init__(self, num_steps: int) -> None:
        self._needed = num_steps
        self._head: Hashable | None = None
        self._num_steps = 0

    def is_over(self, head: Hashable) -> bool:
        """Whether the head has waited for long enough. To be called once in each step.

        Args:
            head: The request or tree that is the first to wait for a row or for KV, always as the same object; None if
                there is none.
        """
        if head is None or head is not self._head:
            self._head, self._num_steps = head, 0
            return False
        self._num_steps += 1
        return self._num_steps >= self._needed


class Shortage:
    """Whether KV has been short lately. If so, trees that have begun go first, because KV that they give up has to be
    recomputed, and new requests have more patience."""

    def __init__(self) -> None:
        self.is_recent = False
        self.is_urgent = False
        """Whether a new request has waited for long enough, and takes KV from others."""

        self._num_steps_left = 0
        self._patience = Patience(STEPS_OF_PATIENCE_FOR_KV)

    def note(self) -> None:
        """Note that there were too few blocks for a sequence."""
        self._num_steps_left = STEPS_OF_PATIENCE_FOR_KV

    def begin_step(self, new: Hashable) -> None:
        """Begin a step.

        Args:
            new: The new request at the head; None if there is none.
        """
        self.is_recent = self._num_steps_left > 0
        self._num_steps_left -= self.is_recent
        self.is_urgent = self._patience.is_over(new if self.is_recent else None)
