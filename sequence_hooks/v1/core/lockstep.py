# SPDX-License-Identifier: Apache-2.0
"""Engines with data parallelism and experts, which step together: if one computes, all do.

A resumption wakes the other engines, as any request does, and they compute with this one. But this engine may not need
a step, because the sequence has no room left, or was aborted meanwhile. It then owes the other engines a step; without
one they would wait forever.
"""


class PendingDummyStep:
    """True from a resumption until a step has computed something, or upstream has seen that nothing is computed.

    Upstream asks after each step whether anything is unfinished, and if so computes with a dummy batch.
    """

    def __init__(self, is_in_lockstep: bool) -> None:
        self._is_in_lockstep = is_in_lockstep
        self._num_empty_steps = 0

    def __bool__(self) -> bool:
        return self._num_empty_steps > 0

    def begin(self) -> None:
        """Note that the other engines were woken."""
        # In the second empty step upstream sees that nothing is left to do.
        self._num_empty_steps = 2 if self._is_in_lockstep else 0

    def note_step(self, num_tokens: int) -> None:
        """Note that a step was scheduled, in which so many tokens are computed."""
        self._num_empty_steps = max(0, self._num_empty_steps - 1) if num_tokens == 0 else 0
