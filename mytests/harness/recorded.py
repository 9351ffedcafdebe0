# SPDX-License-Identifier: Apache-2.0
"""Recorded runs of either surgical engine."""

import dataclasses
from pathlib import Path
from typing import Any

from mytests.harness.surgical import SYNC, SYNC_HOOKS, SpecialKwargs, SurgicalEngine, plan
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
    return read(path)


def under_pressure(path: Path, policy: Any = "discard", **fields: Any) -> Recording:
    """``r`` is BLOCKED with two of eight blocks, two others need more than the rest, and ``r`` is resumed."""
    hooks = dataclasses.replace(SYNC_HOOKS, sync_resume="manual", blocked_kv_policy=policy)
    engine = engine_recorded_to(path, hooks, num_blocks=8, max_model_len=32, **fields)
    engine.add("r", prompt="p" * 8)
    engine.step({"r": SYNC})
    engine.add("s", prompt="s" * 8)
    engine.add("t", prompt="t" * 8)
    engine.run_until(engine.is_waiting_for_callers, plan(s="a" * 6, t="b" * 6))
    engine.resume("r", "tool")
    engine.run(plan(r=".z"))
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
