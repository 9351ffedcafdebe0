# SPDX-License-Identifier: Apache-2.0
"""What V1 records of its run; `mytests/rules/test_recording.py` has what both engines do."""

from pathlib import Path
from typing import Any

import pytest

from mytests.harness.injecting import SYNC_INJECT
from mytests.harness.recorded import only, recorded, under_pressure
from sequence_hooks.trace import events


def test_a_request_arrives_with_its_text(tmp_path: Path) -> None:
    """Which the core decodes, as it only gets tokens."""
    (event,) = only(recorded(tmp_path / "run.jsonl", r="a"), events.Arrived)
    assert event.prompt == "prompt"


@pytest.mark.parametrize(("policy", "kind"), [("discard", events.Evicted), ("preserve", events.Preempted)])
def test_who_gives_up_kv(policy: Any, kind: type, tmp_path: Path) -> None:
    """A BLOCKED sequence gives up all of its own; with "preserve" a running one is preempted."""
    recording = under_pressure(tmp_path / "run.jsonl", policy)
    found = [event for event in recording.events if isinstance(event, events.Evicted | events.Preempted)]
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
