# SPDX-License-Identifier: Apache-2.0
"""What a V1 engine records of its run; V0's tests say what the events mean."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from mytests.characters import PROMISE, SYNC
from mytests.v1.surgical import SYNC_HOOKS, SurgicalEngine, finished, plan
from sequence_hooks import SpecialKwargs
from sequence_hooks.trace import events, recorder
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.reader import Recording, read

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")
TREE = {"r": "a!b!.z", "r_child_0": "AB", "r_child_1": "CDEF"}


def engine_recorded_to(path: Path, hooks: SpecialKwargs = SYNC_HOOKS, **fields: Any) -> SurgicalEngine:
    """An engine whose run is recorded to a new file at ``path``."""
    hooks = dataclasses.replace(hooks, record_to=str(path))
    recorder.begin(str(path), "a model", hooks)
    return SurgicalEngine(hooks, **fields)


def fork_and_join(path: Path, **fields: Any) -> Recording:
    """``r`` spawns two children, decodes beside them, waits for them, and continues with their results."""
    engine = engine_recorded_to(path, **fields)
    engine.add("r", prompt="prompt")
    engine.run(plan(**TREE))
    engine.assert_empty()
    return read(path)


def only(recorded: Recording, kind: type, **fields: Any) -> list[Any]:
    """The events of one kind that have these values."""
    found = [event for event in recorded.events if isinstance(event, kind)]
    return [event for event in found if all(getattr(event, name) == value for name, value in fields.items())]


def ends(recorded: Recording) -> dict[str, str]:
    """Why each sequence ended."""
    return {event.sequence: event.reason for event in only(recorded, events.Finished)}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_fork_and_its_join(is_async: bool, tmp_path: Path) -> None:
    """Besides the steps these are all events, in order; each sequence ends with its text."""
    recorded = fork_and_join(tmp_path / "run.jsonl", is_async=is_async)
    steps = only(recorded, events.Step)
    others = [type(event).__name__ for event in recorded.events if event not in steps]
    spawns, joined = ["Spawned", "Spawned", "Blocked"], ["Finished", "Finished", "Joined", "Finished"]
    assert others == ["Stream", "Arrived", *spawns, *joined]
    texts = {event.sequence: event.text for event in only(recorded, events.Finished)}
    assert texts == {"r": "abAB\nCDEFz", "r_child_0": "AB", "r_child_1": "CDEF"}
    assert only(recorded, events.Arrived)[0].prompt == "prompt"
    assert only(recorded, events.Finished, sequence="r")[0].num_output_tokens == 14


def test_a_step_has_its_tokens(tmp_path: Path) -> None:
    """A child prefills what it does not share; a join prefills what it merged, and the token before."""
    recorded = fork_and_join(tmp_path / "run.jsonl")
    prefills = [chunk for step in only(recorded, events.Step) for chunk in step.prefill]
    (join,) = only(recorded, events.Joined)
    assert prefills == [("r", 6), ("r_child_0", 1), ("r_child_1", 1), ("r", join.num_prefill)]
    assert (join.children, join.num_merged, join.num_prefill) == (["r_child_0", "r_child_1"], 7, 8)


def test_a_step_counts_blocks_and_sequences(tmp_path: Path) -> None:
    """A child shares all full blocks of its parent; each has its own copy of the last one."""
    engine = engine_recorded_to(tmp_path / "run.jsonl")
    engine.add(prompt="p" * 9)
    engine.run(plan(r="!.z", r_child_0="AB"))
    engine.assert_empty()
    recorded = read(tmp_path / "run.jsonl")
    step = only(recorded, events.Step)[2]
    assert (step.num_used_blocks, step.num_unshared_blocks, step.num_blocked, step.num_waiting) == (4, 6, 1, 0)
    last = recorded.events[-1]
    assert isinstance(last, events.Step) and (last.decode, last.num_used_blocks) == ([], 0)


def test_who_waits_for_a_caller_ends_the_step(tmp_path: Path) -> None:
    """Its engine sleeps while it waits."""
    engine = engine_recorded_to(tmp_path / "run.jsonl", MANUAL)
    engine.add()
    engine.step({"r": SYNC})
    *_, blocked, step = read(tmp_path / "run.jsonl").events
    assert isinstance(blocked, events.Blocked) and blocked.until == "caller"
    assert isinstance(step, events.Step) and (step.prefill, step.decode, step.num_blocked) == ([], [], 1)
    engine.abort("r")
    engine.assert_empty()


def test_an_abort_ends_the_whole_tree(tmp_path: Path) -> None:
    """And each sequence once."""
    engine = engine_recorded_to(tmp_path / "run.jsonl")
    engine.add()
    engine.step({"r": PROMISE})
    engine.step({"r": SYNC})
    engine.abort("r")
    engine.assert_empty()
    recorded = read(tmp_path / "run.jsonl")
    assert ends(recorded) == {"r": "aborted", "r_child_0": "aborted"}
    assert len(only(recorded, events.Finished)) == 2


@pytest.mark.parametrize(("policy", "kind"), [("discard", events.GaveUp), ("preserve", events.Preempted)])
def test_who_gives_up_kv(policy: Any, kind: type, tmp_path: Path) -> None:
    """A BLOCKED sequence gives up all of its own; with "preserve" a running one is preempted."""
    hooks = dataclasses.replace(MANUAL, blocked_kv_policy=policy)
    path = tmp_path / "run.jsonl"
    engine = engine_recorded_to(path, hooks, num_blocks=8, max_model_len=32)
    engine.add("r", prompt="p" * 8)
    engine.step({"r": SYNC})
    engine.add("s", prompt="s" * 8)
    engine.add("t", prompt="t" * 8)
    engine.run_until(engine.is_waiting_for_callers, plan(s="a" * 6, t="b" * 6))
    engine.resume("r", "tool")
    engine.run(plan(r=".z"))
    engine.assert_empty()
    found = [event for event in read(path).events if isinstance(event, events.GaveUp | events.Preempted)]
    assert found and all(isinstance(event, kind) and event.means == "discard" for event in found)
    assert all(event.num_recomputed > 0 for event in found)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_picture_is_drawn_of_it(is_async: bool, tmp_path: Path) -> None:
    """A lane for each sequence, with arrows for the spawns and merges; the parent waits in between."""
    picture = picture_of(fork_and_join(tmp_path / "run.jsonl", is_async=is_async))
    assert [(lane.request_id, lane.depth) for lane in picture.lanes] == [("r", 0), ("r_child_0", 1), ("r_child_1", 1)]
    assert sorted(arrow.kind for arrow in picture.arrows) == ["merge", "merge", "spawn", "spawn"]
    states = [bar.state for bar in picture.lanes[0].bars]
    assert "blocked" in states and states.index("prefill") < states.index("blocked") < len(states) - 1


def test_the_run_is_the_same(tmp_path: Path) -> None:
    """Steps and tokens are those of an engine that is not observed."""
    runs = []
    for engine in (SurgicalEngine(SYNC_HOOKS), engine_recorded_to(tmp_path / "run.jsonl")):
        engine.add()
        steps = [engine.step(plan(**TREE)) for _ in range(12)]
        runs.append((steps, engine.worker.copies, finished(engine).token_ids))
        engine.assert_empty()
    assert runs[0] == runs[1]
