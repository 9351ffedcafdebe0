# SPDX-License-Identifier: Apache-2.0
"""Recorded runs of either surgical engine."""

import dataclasses
from pathlib import Path
from typing import Any

from mytests.engine.surgical import SYNC_HOOKS, SpecialKwargs, SurgicalEngine, plan
from sequence_hooks.trace import events, recorder
from sequence_hooks.trace.reader import Recording, read


def engine_recorded_to(path: Path, hooks: SpecialKwargs = SYNC_HOOKS, **fields: Any) -> SurgicalEngine:
    """An engine whose run is recorded to a new file at ``path``."""
    hooks = dataclasses.replace(hooks, record_to=str(path))
    recorder.begin(str(path), "a model", hooks)
    return SurgicalEngine(hooks, **fields)


def recorded(path: Path, hooks: SpecialKwargs = SYNC_HOOKS, prompt: str = "prompt", **texts: str) -> Recording:
    """A request that samples the texts, to its end."""
    engine = engine_recorded_to(path, hooks)
    engine.add(prompt=prompt)
    engine.run(plan(**texts))
    engine.assert_empty()
    return read(path)


def told_by(line: events.AnyEvent) -> Any:
    """What a line tells: itself, or an event of a tree."""
    return line.event if isinstance(line, events.TreeChanged) else line


def only(recording: Recording, kind: type, **fields: Any) -> list[Any]:
    """The events of one kind that have these values."""
    found = [event for event in map(told_by, recording.events) if isinstance(event, kind)]
    return [event for event in found if all(getattr(event, name) == value for name, value in fields.items())]


def ends(recording: Recording) -> dict[str, str]:
    """Why each sequence ended."""
    return {event.sequence: event.reason for event in only(recording, events.Finished)}
