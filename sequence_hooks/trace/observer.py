# SPDX-License-Identifier: Apache-2.0
"""Who is told of a run's events: the trees and the engine's scheduler call one observer, which may record them."""

from collections.abc import Callable
from typing import Any, Protocol

from sequence_hooks.trace.events import AnyEvent


class Observer(Protocol):
    """Told of events as they happen. It changes nothing."""

    @property
    def is_recording(self) -> bool:
        """Whether it is worth computing an event's counts for it."""

    def now(self) -> float:
        """The time that an event gets now, in seconds."""

    def note(self, kind: Callable[..., AnyEvent], /, at: float | None = None, **fields: Any) -> None:
        """An event of ``kind`` with these fields happens now, or happened ``at``."""


class _Silent:
    is_recording = False

    def now(self) -> float:
        return 0.0

    def note(self, kind: Callable[..., AnyEvent], /, at: float | None = None, **fields: Any) -> None:
        pass


SILENT: Observer = _Silent()
"""Records nothing."""
