# SPDX-License-Identifier: Apache-2.0
"""What an engine records of its run: the events of a fork and its join, and that nothing else changes."""

import dataclasses
from pathlib import Path
from typing import Any

from mytests.harness.injecting import SYNC_INJECT
from mytests.harness.recorded import ends, engine_recorded_to, only, recorded, told_by
from mytests.harness.surgical import EOS, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, completed, finished, plan
from sequence_hooks.trace import events
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.reader import read
from sequence_hooks.tree import events as tree

TREE: dict[str, Any] = {"r": "a!b!.z", "r_child_0": "AB", "r_child_1": "CDEF"}


class TestEvents:
    def test_a_fork_and_its_join(self, tmp_path: Path) -> None:
        """Besides the steps these are all events, in order, with what they tell of their sequences."""
        recording = recorded(tmp_path / "run.jsonl", **TREE)
        others = [type(told_by(line)).__name__ for line in recording.events if not isinstance(line, events.Step)]
        spawns, joined = ["Spawned", "Spawned", "Blocked"], ["Finished", "Finished", "Joined", "Finished"]
        assert others == ["SchedulerStarted", "Arrived", *spawns, *joined]
        assert [(each.sequence, each.num_prompt_tokens) for each in only(recording, events.Arrived)] == [("r", 6)]
        specs = [event.spec for event in only(recording, tree.Spawned)]
        assert [(each.request_id, each.parent_id) for each in specs] == [("r_child_0", "r"), ("r_child_1", "r")]
        assert [(each.position, each.num_prompt_tokens) for each in specs] == [(2, 8), (4, 10)]
        (join,) = only(recording, tree.Joined)
        assert (join.children, join.num_merged, join.num_prefill, join.num_cut) == (("r_child_0", "r_child_1"), 7, 8, 0)
        assert join.num_injected == 0
        found = [(each.sequence, each.reason, each.text) for each in only(recording, events.Finished)]
        assert sorted(found) == [
            ("r", "stopped", "abAB\nCDEFz"), ("r_child_0", "stopped", "AB"), ("r_child_1", "stopped", "CDEF"),
        ]  # fmt: skip
        assert sorted(each.num_output_tokens for each in only(recording, events.Finished)) == [3, 5, 14]

    def test_a_join_counts_what_came_with_its_kv(self, tmp_path: Path) -> None:
        """All merged tokens but the separator and the last one are injected."""
        recording = recorded(tmp_path / "run.jsonl", SYNC_INJECT, r="!!.z", r_child_0="ABCDE", r_child_1="VWXYZ")
        (join,) = only(recording, tree.Joined)
        assert (join.num_merged, join.num_injected, join.num_prefill) == (11, 9, 3)

    def test_a_step_has_its_tokens(self, tmp_path: Path) -> None:
        """A child prefills what it does not share; a join prefills what it merged, and the token before."""
        steps = only(recorded(tmp_path / "run.jsonl", **TREE), events.Step)
        prefills = [chunk for step in steps for chunk in step.prefill]
        assert prefills == [("r", 6), ("r_child_0", 1), ("r_child_1", 1), ("r", 8)]
        assert {name for step in steps for name in step.decode} == set(TREE)
        assert (steps[-1].prefill, steps[-1].decode, steps[-1].num_used_blocks) == ([], [], 0)

    def test_a_step_counts_blocks_and_sequences(self, tmp_path: Path) -> None:
        """A child shares all full blocks of its parent; each has its own copy of the last one."""
        steps = only(recorded(tmp_path / "run.jsonl", prompt="p" * 9, r="!.z", r_child_0="AB"), events.Step)
        step = next(step for step in steps if step.num_blocked)
        assert (step.num_used_blocks, step.num_unshared_blocks, step.num_blocked, step.num_waiting) == (4, 6, 1, 0)

    def test_who_waits_for_a_caller_says_so(self, tmp_path: Path) -> None:
        """Its engine steps on or sleeps while it waits; only one idle step is recorded."""
        engine = engine_recorded_to(tmp_path / "run.jsonl", dataclasses.replace(SYNC_HOOKS, sync_resume="manual"))
        engine.add()
        for token in (SYNC, EOS, EOS, EOS):
            engine.step({"r": token})
        recording = read(tmp_path / "run.jsonl")
        assert [event.waits_for for event in only(recording, tree.Blocked)] == ["caller"]
        (idle,) = [step for step in only(recording, events.Step) if not step.prefill and not step.decode]
        assert idle.num_blocked == 1
        engine.abort("r")
        engine.assert_empty()


class TestEnds:
    def test_by_length(self, tmp_path: Path) -> None:
        """The sequence reached a limit."""
        completed(engine_recorded_to(tmp_path / "run.jsonl"), params={"max_tokens": 2}, r="xx")
        assert ends(read(tmp_path / "run.jsonl")) == {"r": "length_capped"}

    def test_by_an_abort(self, tmp_path: Path) -> None:
        """An abort ends the whole tree, each sequence once, and nothing runs afterwards."""
        engine = engine_recorded_to(tmp_path / "run.jsonl")
        engine.add()
        engine.step({"r": PROMISE})
        engine.step({"r": SYNC})
        engine.abort("r")
        engine.assert_empty()
        recording = read(tmp_path / "run.jsonl")
        assert ends(recording) == {"r": "aborted", "r_child_0": "aborted"}
        assert len(only(recording, events.Finished)) == 2
        last = recording.events[-1]
        assert isinstance(last, events.Step) and (last.decode, last.num_used_blocks) == ([], 0)

    def test_with_a_join(self, tmp_path: Path) -> None:
        """The parent stopped before its child did, and ends when it is joined."""
        recording = recorded(tmp_path / "run.jsonl", r="!", r_child_0="ABC")
        assert ends(recording) == {"r": "stopped", "r_child_0": "stopped"}
        assert [event.text for event in only(recording, events.Finished, sequence="r")] == ["ABC"]
        assert only(recording, tree.Joined)[0].num_prefill == 0


def test_a_picture_is_drawn_of_it(tmp_path: Path) -> None:
    """A lane for each sequence, with arrows for the spawns and merges; the parent waits in between."""
    picture = picture_of(recorded(tmp_path / "run.jsonl", **TREE))
    assert [(lane.request_id, lane.depth) for lane in picture.lanes] == [("r", 0), ("r_child_0", 1), ("r_child_1", 1)]
    assert sorted(arrow.kind for arrow in picture.arrows) == ["merge", "merge", "spawn", "spawn"]
    states = [bar.state for bar in picture.lanes[0].bars]
    assert "blocked" in states and states.index("prefill") < states.index("blocked") < len(states) - 1


def test_the_run_is_the_same(tmp_path: Path) -> None:
    """Steps, blocks and tokens are those of an engine that is not observed."""
    runs = []
    for engine in (SurgicalEngine(SYNC_HOOKS), engine_recorded_to(tmp_path / "run.jsonl")):
        engine.add()
        steps = [(engine.step(plan(**TREE)), list(map(engine.blocks_of, engine.statuses()))) for _ in range(12)]
        engine.run(plan(**TREE))
        runs.append((steps, finished(engine).token_ids))
    assert runs[0] == runs[1]
