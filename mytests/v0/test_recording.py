# SPDX-License-Identifier: Apache-2.0
"""What V0 records of its run; `mytests/rules/test_recording.py` has what both engines do."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mytests.harness.recorded import ends, only
from mytests.harness.surgical import PROMISE, SYNC_HOOKS, SurgicalEngine
from mytests.harness.v0.recorded import engine_recorded_to, under_pressure
from sequence_hooks.trace import events
from sequence_hooks.trace.observer import Observer
from sequence_hooks.trace.reader import read

COUNTS = {"num_used_blocks": 1, "num_unshared_blocks": 2, "num_blocked": 3, "num_waiting": 7}


def test_what_can_never_fit_ends_without_a_step(tmp_path: Path) -> None:
    """It is ignored; here its prompt came only as tokens, without text."""
    engine = engine_recorded_to(tmp_path / "run.jsonl", num_blocks=2)
    engine.add(prompt="p" * 20)
    engine.step({})
    recorded = read(tmp_path / "run.jsonl")
    assert ends(recorded) == {"r": "ignored"}
    assert only(recorded, events.Step) == []
    assert only(recorded, events.Arrived)[0].prompt is None
    engine.assert_empty()


class TestPressure:
    @pytest.mark.parametrize(
        ("policy", "num_cpu_blocks", "evicted", "preempted"),
        [
            ("discard", 0, [("r", "discard", 4)] * 2, []),
            ("swap", 8, [("r", "swap", 0)], []),
            ("preserve", 0, [], [("discard", 12)]),
            ("preserve", 8, [], [("swap", 0)]),
        ],
    )
    def test_who_gives_up_kv(
        self, policy: Any, num_cpu_blocks: int, evicted: list[Any], preempted: list[Any], tmp_path: Path
    ) -> None:
        """A BLOCKED sequence gives up a block each time that one is missing, or is swapped; else a running one does."""
        recorded = under_pressure(tmp_path / "run.jsonl", policy=policy, num_cpu_blocks=num_cpu_blocks)
        gone = only(recorded, events.Evicted), only(recorded, events.Preempted)
        assert [(event.sequence, event.means, event.num_recomputed) for event in gone[0]] == evicted
        assert [(event.means, event.num_recomputed) for event in gone[1]] == preempted
        swapped = [event.sequence for each in gone for event in each if event.means == "swap"]
        assert [event.sequence for event in only(recorded, events.SwappedIn)] == swapped
        assert all(step.num_unshared_blocks == step.num_used_blocks for step in only(recorded, events.Step))


class Noted(list[tuple[type, dict[str, Any]]], Observer):
    """An observer that keeps what it is told."""

    is_recording = True

    def note(self, kind: Any, /, at: float | None = None, **fields: Any) -> None:
        self.append((kind, {"at": at, **fields}))


def test_all_queues_are_counted() -> None:
    """Waiting, forked and swapped; a step has its start, and the ids of those that decode."""
    engine, noted = SurgicalEngine(SYNC_HOOKS, max_num_seqs=1), Noted()
    for name in "rs":
        engine.add(name)
    engine.step({"r": PROMISE})
    engine.scheduler.observe(noted)
    metadata, outputs, _ = engine.scheduler.schedule()
    assert [entry.seq_group.request_id for entry in outputs.scheduled_seq_groups] == ["r"]
    (_, stream), *_ = noted
    assert (stream["block_size"], stream["num_blocks"]) == (4, 64)
    (step,) = [fields for kind, fields in noted if kind is events.Step]
    assert (step["at"], step["num_waiting"], step["num_blocked"], len(metadata)) == (0.0, 2, 0, 1)
    entry: Any = SimpleNamespace(is_prompt=False), engine.scheduler.running[0]
    engine.scheduler.recorder.step(3.5, [entry], **COUNTS)
    kind, step = noted[-1]
    assert (kind, step["at"], step["decode"], step["num_waiting"]) == (events.Step, 3.5, ["r"], 7)
