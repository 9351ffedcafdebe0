# SPDX-License-Identifier: Apache-2.0
"""What an engine records of its run."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mytests.recorded import engine_recorded_to, fork_and_join, under_pressure
from mytests.surgical import PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, plan
from sequence_hooks.trace import events
from sequence_hooks.trace.reader import Recording, read
from sequence_hooks.trace.steps import Counts

INJECT = dataclasses.replace(SYNC_HOOKS, child_merge_strategy="kv_inject")
COUNTS = Counts(num_used_blocks=1, num_unshared_blocks=2, num_blocked=3, num_waiting=7)
MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")


def only(recorded: Recording, kind: type, **fields: Any) -> list[Any]:
    """The events of one kind that have these values."""
    found = [event for event in recorded.events if isinstance(event, kind)]
    return [event for event in found if all(getattr(event, name) == value for name, value in fields.items())]


def ends(recorded: Recording) -> dict[str, str]:
    """Why each sequence ended."""
    return {event.sequence: event.reason for event in only(recorded, events.Finished)}


class TestEvents:
    def test_a_fork_and_its_join(self, tmp_path: Path) -> None:
        """Besides the steps these are all events, in order."""
        recorded = fork_and_join(tmp_path / "run.jsonl")
        steps = only(recorded, events.Step)
        others = [type(event).__name__ for event in recorded.events if event not in steps]
        spawns, ends = ["Spawned", "Spawned", "Blocked"], ["Finished", "Finished", "Joined", "Finished"]
        assert others == ["Stream", "Arrived", *spawns, *ends]

    def test_a_child_is_spawned_from_its_parent(self, tmp_path: Path) -> None:
        """It starts after the promise, with the parent's context as its prompt."""
        first, second = only(fork_and_join(tmp_path / "run.jsonl"), events.Spawned)
        assert (first.sequence, first.parent, first.position, first.num_prompt_tokens) == ("r_child_0", "r", 2, 8)
        assert (second.sequence, second.parent, second.position, second.num_prompt_tokens) == ("r_child_1", "r", 4, 10)

    def test_a_join_counts_tokens(self, tmp_path: Path) -> None:
        """Six tokens and a separator are merged; these and the sync token are prefilled."""
        (join,) = only(fork_and_join(tmp_path / "run.jsonl"), events.Joined)
        assert (join.children, join.num_merged, join.num_prefill, join.num_cut) == (["r_child_0", "r_child_1"], 7, 8, 0)
        assert join.num_injected == 0

    def test_a_join_counts_what_came_with_its_kv(self, tmp_path: Path) -> None:
        """All merged tokens but the separator and the last one are injected."""
        engine = engine_recorded_to(tmp_path / "run.jsonl", INJECT)
        engine.add()
        engine.run(plan(r="!!.z", r_child_0="ABCDE", r_child_1="VWXYZ"))
        (join,) = only(read(tmp_path / "run.jsonl"), events.Joined)
        assert (join.num_merged, join.num_injected, join.num_prefill) == (11, 9, 3)

    def test_a_step_has_its_tokens(self, tmp_path: Path) -> None:
        """A prompt is prefilled, then one token is decoded per step."""
        engine = engine_recorded_to(tmp_path / "run.jsonl")
        engine.add(prompt="prompt")
        engine.run(plan(r="ab"))
        steps = only(read(tmp_path / "run.jsonl"), events.Step)
        assert [(step.prefill, step.decode) for step in steps] == [([("r", 6)], []), ([], ["r"]), ([], ["r"]), ([], [])]

    def test_a_step_counts_blocks_and_sequences(self, tmp_path: Path) -> None:
        """A child shares all full blocks of its parent; each has its own copy of the last one."""
        engine = engine_recorded_to(tmp_path / "run.jsonl")
        engine.add(prompt="p" * 9)
        engine.run(plan(r="!z", r_child_0="AB"))
        step = only(read(tmp_path / "run.jsonl"), events.Step)[1]
        assert (step.num_used_blocks, step.num_unshared_blocks) == (4, 6)
        assert (step.num_blocked, step.num_waiting) == (1, 0)

    def test_who_waits_for_a_caller_says_so(self, tmp_path: Path) -> None:
        """Its engine steps on while it waits; only one of these idle steps is recorded."""
        engine = engine_recorded_to(tmp_path / "run.jsonl", MANUAL)
        engine.add()
        engine.step({"r": SYNC})
        for _ in range(5):
            engine.step({})
        recorded = read(tmp_path / "run.jsonl")
        assert [event.until for event in only(recorded, events.Blocked)] == ["caller"]
        assert len(only(recorded, events.Step)) == 2

    def test_requests_arrive_with_their_prompt(self, tmp_path: Path) -> None:
        """Fake requests have it only as tokens, without text."""
        (event,) = only(fork_and_join(tmp_path / "run.jsonl"), events.Arrived)
        assert (event.sequence, event.num_prompt_tokens, event.prompt) == ("r", 6, None)


class TestEnds:
    def test_with_text(self, tmp_path: Path) -> None:
        """The text includes merged tokens."""
        event = only(fork_and_join(tmp_path / "run.jsonl"), events.Finished, sequence="r")[0]
        assert (event.reason, event.text, event.num_output_tokens) == ("stopped", "abAB\nCDEFz", 14)

    def test_by_length(self, tmp_path: Path) -> None:
        """The sequence reached a limit."""
        engine = engine_recorded_to(tmp_path / "run.jsonl")
        engine.add(max_tokens=2)
        engine.run({})
        assert ends(read(tmp_path / "run.jsonl")) == {"r": "length_capped"}

    def test_by_an_abort(self, tmp_path: Path) -> None:
        """An abort ends the whole tree, and nothing runs afterwards."""
        engine = engine_recorded_to(tmp_path / "run.jsonl", SYNC_HOOKS)
        engine.add()
        engine.step({"r": PROMISE})
        engine.step({"r": SYNC})
        engine.scheduler.abort_seq_group("r")
        engine.assert_empty()
        recorded = read(tmp_path / "run.jsonl")
        assert ends(recorded) == {"r": "aborted", "r_child_0": "aborted"}
        assert isinstance(recorded.events[-1], events.Step)
        assert (recorded.events[-1].decode, recorded.events[-1].num_used_blocks) == ([], 0)

    def test_of_what_can_never_fit(self, tmp_path: Path) -> None:
        """A request that can never fit ends without a step."""
        engine = engine_recorded_to(tmp_path / "run.jsonl", num_blocks=2)
        engine.add(prompt="p" * 20)
        engine.step({})
        recorded = read(tmp_path / "run.jsonl")
        assert ends(recorded) == {"r": "ignored"}
        assert only(recorded, events.Step) == []

    def test_with_a_join(self, tmp_path: Path) -> None:
        """The parent stopped before its child did, and ends when it is joined."""
        engine = engine_recorded_to(tmp_path / "run.jsonl", SYNC_HOOKS)
        engine.add()
        engine.run(plan(r="!", r_child_0="ABC"))
        recorded = read(tmp_path / "run.jsonl")
        assert ends(recorded) == {"r": "stopped", "r_child_0": "stopped"}
        assert only(recorded, events.Finished, sequence="r")[0].text == "ABC"
        assert only(recorded, events.Joined)[0].num_prefill == 0


class TestPressure:
    def test_who_is_blocked_gives_up_kv(self, tmp_path: Path) -> None:
        """It gives up one block each time that one is missing."""
        given_up = only(under_pressure(tmp_path / "run.jsonl"), events.GaveUp)
        assert [(event.sequence, event.means, event.num_recomputed) for event in given_up] == [("r", "discard", 4)] * 2

    def test_it_may_be_swapped_out(self, tmp_path: Path) -> None:
        """Its KV is swapped in again later."""
        recorded = under_pressure(tmp_path / "run.jsonl", policy="swap", num_cpu_blocks=8)
        assert [(event.sequence, event.means) for event in only(recorded, events.GaveUp)] == [("r", "swap")]
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
        assert only(recorded, events.GaveUp) == []

    def test_a_running_sequence_is_swapped_out(self, tmp_path: Path) -> None:
        """It is swapped in again later."""
        recorded = under_pressure(tmp_path / "run.jsonl", policy="preserve", num_cpu_blocks=8)
        (event,) = only(recorded, events.Preempted)
        assert (event.means, event.num_recomputed) == ("swap", 0)
        assert [back.sequence for back in only(recorded, events.SwappedIn)] == [event.sequence]


class Noted(list[tuple[type, dict[str, Any]]]):
    """An observer that keeps what it is told."""

    is_recording = True

    def now(self) -> float:
        return 0.0

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
        engine.scheduler.notes.step(3.5, [entry], COUNTS)
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
