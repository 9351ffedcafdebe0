# SPDX-License-Identifier: Apache-2.0
"""What V0 records of its run; `mytests/rules/test_recording.py` has what both engines do."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mytests.harness.recorded import ends, only
from mytests.harness.surgical import PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine
from mytests.harness.v0.recorded import engine_recorded_to, under_pressure
from sequence_hooks.trace import events
from sequence_hooks.trace.observer import Observer
from sequence_hooks.trace.reader import read
from sequence_hooks.tree.events import Blocked

COUNTS = {"num_used_blocks": 1, "num_unshared_blocks": 2, "num_blocked": 3, "num_waiting": 7}
MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")


class TestEvents:
    def test_who_waits_for_a_caller_says_so(self, tmp_path: Path) -> None:
        """Its engine steps on while it waits; only one of these idle steps is recorded."""
        engine = engine_recorded_to(tmp_path / "run.jsonl", MANUAL)
        engine.add()
        engine.step({"r": SYNC})
        for _ in range(5):
            engine.step({})
        recorded = read(tmp_path / "run.jsonl")
        assert [event.waits_for for event in only(recorded, Blocked)] == ["caller"]
        assert len(only(recorded, events.Step)) == 2
        engine.abort("r")
        engine.assert_empty()

    def test_what_can_never_fit_ends_without_a_step(self, tmp_path: Path) -> None:
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
    def test_who_is_blocked_gives_up_kv(self, tmp_path: Path) -> None:
        """It gives up one block each time that one is missing."""
        given_up = only(under_pressure(tmp_path / "run.jsonl"), events.Evicted)
        assert [(event.sequence, event.means, event.num_recomputed) for event in given_up] == [("r", "discard", 4)] * 2

    def test_it_may_be_swapped_out(self, tmp_path: Path) -> None:
        """Its KV is swapped in again later."""
        recorded = under_pressure(tmp_path / "run.jsonl", policy="swap", num_cpu_blocks=8)
        assert [(event.sequence, event.means) for event in only(recorded, events.Evicted)] == [("r", "swap")]
        assert [event.sequence for event in only(recorded, events.SwappedIn)] == ["r"]

    def test_blocks_in_swap_space_are_not_counted(self, tmp_path: Path) -> None:
        """Nothing is shared here, so there are as many blocks without sharing as with it."""
        recorded = under_pressure(tmp_path / "run.jsonl", policy="swap", num_cpu_blocks=8)
        for step in only(recorded, events.Step):
            assert step.num_unshared_blocks == step.num_used_blocks

    def test_a_running_sequence_is_preempted(self, tmp_path: Path) -> None:
        """Its tokens are computed again, and no BLOCKED sequence gives up KV."""
        recorded = under_pressure(tmp_path / "run.jsonl", policy="preserve")
        (event,) = only(recorded, events.Preempted)
        assert (event.means, event.num_recomputed) == ("discard", 12)
        assert only(recorded, events.Evicted) == []

    def test_a_running_sequence_is_swapped_out(self, tmp_path: Path) -> None:
        """It is swapped in again later."""
        recorded = under_pressure(tmp_path / "run.jsonl", policy="preserve", num_cpu_blocks=8)
        (event,) = only(recorded, events.Preempted)
        assert (event.means, event.num_recomputed) == ("swap", 0)
        assert [back.sequence for back in only(recorded, events.SwappedIn)] == [event.sequence]


class Noted(list[tuple[type, dict[str, Any]]], Observer):
    """An observer that keeps what it is told."""

    is_recording = True

    def note(self, kind: Any, /, at: float | None = None, **fields: Any) -> None:
        self.append((kind, {"at": at, **fields}))


class TestNotes:
    def test_a_step_has_its_start_and_its_counts(self) -> None:
        """It started before it was noted."""
        engine, noted = SurgicalEngine(SYNC_HOOKS, max_num_seqs=1), Noted()
        engine.add()
        engine.add("s")
        engine.step({"r": PROMISE})
        engine.scheduler.observe(noted)
        entry: Any = SimpleNamespace(is_prompt=False), engine.scheduler.running[0]
        engine.scheduler.recorder.step(3.5, [entry], **COUNTS)
        (_, stream), (kind, step) = noted
        assert (stream["block_size"], stream["num_blocks"]) == (4, 64)
        assert (kind, step["at"], step["decode"], step["num_waiting"]) == (events.Step, 3.5, ["r"], 7)

    def test_all_queues_are_counted(self) -> None:
        """Waiting, forked and swapped."""
        engine, noted = SurgicalEngine(SYNC_HOOKS, max_num_seqs=1), Noted()
        engine.add()
        engine.add("s")
        engine.step({"r": PROMISE})
        engine.scheduler.observe(noted)
        metadata, outputs, _ = engine.scheduler.schedule()
        assert [entry.seq_group.request_id for entry in outputs.scheduled_seq_groups] == ["r"]
        (step,) = [fields for kind, fields in noted if kind is events.Step]
        assert (step["at"], step["num_waiting"], step["num_blocked"], len(metadata)) == (0.0, 2, 0, 1)
