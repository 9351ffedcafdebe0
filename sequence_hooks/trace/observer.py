# SPDX-License-Identifier: Apache-2.0
"""The observer of a run: the trees and the engine's scheduler tell it of events, which it may record."""

from collections.abc import Callable
from typing import Any, Protocol

from sequence_hooks.trace.events import AnyEvent


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


SILENT: Observer = _Silent()
"""An observer that records nothing."""
