# SPDX-License-Identifier: Apache-2.0
"""What upstream's scheduler hears of pauses, in which a trainer changes the weights.

Upstream clears all KV in a pause, unless its caller asks by ``clear_cache=False`` for what is faster: then tokens after
the pause attend to KV of the weights before it, and trees say so.
"""

from typing import Any

from sequence_hooks.v1.core.connected import ConnectedScheduler
from sequence_hooks.v1.core.event_log import EventLog
from sequence_hooks.v1.core.sequence import V1Branch
from vllm.v1.core.sched.interface import PauseState


class PausedScheduler(ConnectedScheduler):
    """Upstream's scheduler, which knows whether it has KV that a pause has kept."""

    _events: EventLog
    _has_cleared = False
    """Whether all KV was cleared in the current pause, or since the last one."""

    _has_older_kv = False

    def set_pause_state(self, pause_state: PauseState) -> None:
        """As upstream; a pause that ends with the KV that was there before is noted."""
        is_first, is_last = (state == PauseState.UNPAUSED for state in (self.pause_state, pause_state))
        super().set_pause_state(pause_state)
        if is_first and not is_last:
            self._has_cleared = False
        elif is_last and not is_first and not self._has_cleared:
            self._has_older_kv = True
            for branch in self.branches.values():
                self._tell_of_older_kv(branch)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """As upstream. It succeeds if no request has any KV left."""
        has_cleared: bool = super().reset_prefix_cache(*args, **kwargs)
        if has_cleared:
            self._has_cleared, self._has_older_kv = True, False
        return has_cleared

    def _tell_of_older_kv(self, branch: V1Branch) -> None:
        """Tell of a sequence of a tree, which may have found or inherited it, that there is KV of older weights."""
        if self._has_older_kv:
            self._events.note_older_kv(branch)
