# SPDX-License-Identifier: Apache-2.0
"""Recorded runs of a surgical engine, and their traces. A tick of the clock is a second."""

import itertools
from pathlib import Path
from typing import Any

from mytests.harness import recorded
from mytests.harness.plain import spec
from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, plan
from sequence_hooks.trace import recorder
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.events import Arrived, SchedulerStarted, TreeChanged
from sequence_hooks.trace.lanes import Lane, Picture
from sequence_hooks.trace.reader import Recording, read
from sequence_hooks.tree.events import Spawned
from vllm.config import SpecialKwargs
from vllm.core.hook_scheduler import HookScheduler


class TickingScheduler(HookScheduler):
    """A scheduler whose clock advances by a second with each reading."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.clock = itertools.count().__next__
        super().__init__(*args, **kwargs)


def engine_recorded_to(path: Path, hooks: SpecialKwargs = HOOKS, **fields: Any) -> SurgicalEngine:
    """An engine whose run is recorded to a new file at ``path``."""
    return recorded.engine_recorded_to(path, hooks, scheduler_cls=TickingScheduler, **fields)


def fork_and_join(path: Path) -> Recording:
    """``r`` spawns two children, decodes beside them, waits for them, and continues with their results."""
    engine = engine_recorded_to(path, SYNC_HOOKS)
    engine.add("r", prompt="prompt")
    engine.run(plan(r="a!b!.z", r_child_0="AB", r_child_1="CDEF"))
    engine.assert_empty()
    return read(path)


def under_pressure(path: Path, policy: Any = "discard", num_cpu_blocks: int = 0) -> Recording:
    """The same of either engine, with swap space."""
    return recorded.under_pressure(path, policy, scheduler_cls=TickingScheduler, num_cpu_blocks=num_cpu_blocks)


def written(path: Path, *events: tuple[type, dict[str, Any]]) -> Path:
    """A recording with these events of one stream."""
    recorder.begin(str(path), "a model", SYNC_HOOKS)
    noted = recorder.Recorder(str(path), lambda: 0.0)
    for kind, fields in events:
        noted.note(kind, **fields)
    return path


def picture_with(path: Path, *others: tuple[type, dict[str, Any]]) -> Picture:
    """The picture of a request "r" with these events."""
    stream = (SchedulerStarted, {"block_size": 4, "num_blocks": 8})
    parent = (Arrived, {"sequence": "r", "num_prompt_tokens": 1, "prompt": None})
    return picture_of(read(written(path, stream, parent, *others)))


def spawned(child: str, parent: str, label: str = "") -> tuple[type, dict[str, Any]]:
    return TreeChanged, {"event": Spawned(spec(request_id=child, parent=parent, label=label))}


def lane_of(picture: Picture, request_id: str = "r") -> Lane:
    (lane,) = [lane for lane in picture.lanes if lane.request_id == request_id]
    return lane


def bars_of(recording: Recording, request_id: str = "r") -> list[tuple[str, int]]:
    """The bars of a sequence in order: state and number of tokens."""
    return [(bar.state, bar.num_tokens) for bar in lane_of(picture_of(recording), request_id).bars]
