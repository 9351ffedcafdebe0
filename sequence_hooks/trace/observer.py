# SPDX-License-Identifier: Apache-2.0
"""The observer of a run: the engine's scheduler tells it of events, and of those of its trees, which it may record."""

from collections.abc import Callable
from enum import Enum
from typing import Any

from sequence_hooks.kv.eviction import EvictionMeans
from sequence_hooks.trace import events
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.events import Aborted, Ended, Limited, Recomputed, TreeEvent


class Observer:
    """Is told of events as they happen, and changes nothing. This one records nothing."""

    is_recording = False
    """Whether it is worth computing an event's counts for it."""

    def now(self) -> float:
        """The time that an event gets now, in seconds."""
        return 0.0

    def note(self, kind: Callable[..., events.AnyEvent], /, at: float | None = None, **fields: Any) -> None:
        """Take note of an event of ``kind`` with these fields, which happens now or happened ``at``."""


NO_RECORDER = Observer()


class TreeRecorder:
    """A `sequence_hooks.tree.events.TreeObserver` that tells the observer of a run what happens to trees.

    It leaves out ends, and KV that is given up: the scheduler tells of those of each sequence, also without a tree. It
    also leaves out limits, which a tree may meet at every token.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def note(self, branch: Branch[Any], event: TreeEvent) -> None:
        """Take note of an event that happens now."""
        if not isinstance(event, Ended | Aborted | Limited | Recomputed):
            self._observer.note(events.TreeChanged, event=event)


class RunRecorder(TreeRecorder):
    """What the schedulers of both engines tell the observer, each event once. Sequences are named by their ids."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self.is_recording, self.now = observer.is_recording, observer.now
        self._is_idle = True
        """Whether the latest noted step had nothing scheduled."""

    def preempted(self, sequence: str, means: EvictionMeans, num_recomputed: int) -> None:
        """Note that a running sequence is preempted, and gives up KV."""
        self._observer.note(events.Preempted, sequence=sequence, means=means, num_recomputed=num_recomputed)

    def evicted(self, sequence: str, means: EvictionMeans, num_recomputed: int) -> None:
        """Note that a sequence that does not run gives up KV, of which so many tokens will have to be recomputed."""
        self._observer.note(events.Evicted, sequence=sequence, means=means, num_recomputed=num_recomputed)

    def _ended(self, sequence: str, status: Enum, num_output_tokens: int, text: str, **drafts: int) -> None:
        reason = status.name.removeprefix("FINISHED_").lower()
        fields: dict[str, Any] = {"reason": reason, "num_output_tokens": num_output_tokens, "text": text, **drafts}
        self._observer.note(events.Finished, sequence=sequence, **fields)

    def _step(self, start: float, prefill: list[tuple[str, int]], decode: list[str], **counts: int) -> None:
        """Note that a step started at ``start`` or, with nothing scheduled, that the one before it has ended.

        Args:
            prefill, decode, counts: See `sequence_hooks.trace.events.Step`.
        """
        is_idle = not prefill and not decode
        # While a sequence waits for a caller, an engine may run empty steps again and again.
        if not is_idle or not self._is_idle:
            self._is_idle = is_idle
            self._observer.note(events.Step, at=start, prefill=prefill, decode=decode, **counts)
