# SPDX-License-Identifier: Apache-2.0
"""The observer of a run: the engine's scheduler tells it of events, and of those of its trees, which it may record."""

from collections.abc import Callable
from typing import Any, Protocol

from sequence_hooks.trace.events import AnyEvent, TreeChanged
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.events import Aborted, Ended, TreeEvent


class Observer(Protocol):
    """Is told of events as they happen. It changes nothing."""

    @property
    def is_recording(self) -> bool:
        """Whether it is worth computing an event's counts for it."""

    def now(self) -> float:
        """The time that an event gets now, in seconds."""

    def note(self, kind: Callable[..., AnyEvent], /, at: float | None = None, **fields: Any) -> None:
        """Take note of an event of ``kind`` with these fields, which happens now or happened ``at``."""


class _Silent:
    is_recording = False

    def now(self) -> float:
        return 0.0

    def note(self, kind: Callable[..., AnyEvent], /, at: float | None = None, **fields: Any) -> None:
        pass


NO_RECORDER: Observer = _Silent()
"""An observer that records nothing."""


class TreeRecorder:
    """A `sequence_hooks.tree.events.TreeObserver` that tells the observer of a run what happens to trees.

    It leaves out ends: the scheduler tells of the end of each sequence, also of those without a tree.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def note(self, branch: Branch[Any], event: TreeEvent) -> None:
        """Take note of an event that happens now."""
        if not isinstance(event, Ended | Aborted):
            self._observer.note(TreeChanged, event=event)
