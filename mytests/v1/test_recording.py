# SPDX-License-Identifier: Apache-2.0
"""What V1 records of its run; `mytests/rules/test_recording.py` has what both engines do."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from mytests.harness.injecting import SYNC_INJECT
from mytests.harness.recorded import engine_recorded_to, only, recorded, told_by, under_pressure
from mytests.harness.surgical import SYNC, SYNC_HOOKS, plan
from sequence_hooks.trace import events
from sequence_hooks.trace.reader import read
from sequence_hooks.tree.events import Blocked

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")


def test_a_request_arrives_with_its_text(tmp_path: Path) -> None:
    """Which the core decodes, as it only gets tokens."""
    engine = engine_recorded_to(tmp_path / "run.jsonl")
    engine.add(prompt="prompt")
    engine.run(plan(r="a"))
    engine.assert_empty()
    assert [event.prompt for event in only(read(tmp_path / "run.jsonl"), events.Arrived)] == ["prompt"]


def test_who_waits_for_a_caller_ends_the_step(tmp_path: Path) -> None:
    """Its engine sleeps while it waits."""
    engine = engine_recorded_to(tmp_path / "run.jsonl", MANUAL)
    engine.add()
    engine.step({"r": SYNC})
    *_, blocked, step = map(told_by, read(tmp_path / "run.jsonl").events)
    assert isinstance(blocked, Blocked) and blocked.waits_for == "caller"
    assert isinstance(step, events.Step) and (step.prefill, step.decode, step.num_blocked) == ([], [], 1)
    engine.abort("r")
    engine.assert_empty()


@pytest.mark.parametrize(("policy", "kind"), [("discard", events.Evicted), ("preserve", events.Preempted)])
def test_who_gives_up_kv(policy: Any, kind: type, tmp_path: Path) -> None:
    """A BLOCKED sequence gives up all of its own; with "preserve" a running one is preempted."""
    recorded = under_pressure(tmp_path / "run.jsonl", policy)
    found = [event for event in recorded.events if isinstance(event, events.Evicted | events.Preempted)]
    assert found and all(isinstance(event, kind) and event.means == "discard" for event in found)
    assert all(event.num_recomputed > 0 for event in found)


@pytest.mark.usefixtures("each_mode")
def test_glue_is_a_part_of_its_sequence(tmp_path: Path) -> None:
    """What is computed between injected results counts as its owner's, and as nobody who waits."""
    recording = recorded(tmp_path / "run.jsonl", SYNC_INJECT, r="!!.zz", r_child_0="ABCDE", r_child_1="VWX")
    steps = only(recording, events.Step)
    prefills = [dict(map(tuple, step.prefill)) for step in steps]
    assert [each["r"] for each in prefills if "r" in each][1:] == [3]
    assert {name for each in prefills for name in each} == {"r", "r_child_0", "r_child_1"}
    assert {step.num_waiting for step in steps} == {0}
    times = [step.time for step in steps]
    assert times == sorted(times)
