# SPDX-License-Identifier: Apache-2.0
"""What V0 records of its run, and who writes it where; `mytests/rules/test_recording.py` has what both engines do."""

import dataclasses
import errno
import gc
from pathlib import Path
from typing import Any

import pytest
from forkjoin_engine import MODEL_FOLDER

from mytests.harness.recorded import ends, only
from mytests.harness.surgical import HOOKS, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, finished, plan
from mytests.harness.v0.recorded import TickingScheduler, engine_recorded_to, fork_and_join, under_pressure
from sequence_hooks.trace import events, recorder
from sequence_hooks.trace.observer import Observer
from sequence_hooks.trace.reader import read
from sequence_hooks.trace.recorder import Recorder
from sequence_hooks.tree.events import Joined
from vllm.config import SpecialKwargs
from vllm.core.hook_scheduler import HookScheduler
from vllm.engine.arg_utils import EngineArgs
from vllm.utils import resolve_obj_by_qualname


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


@pytest.mark.parametrize(
    ("policy", "num_cpu_blocks", "evicted", "preempted", "num_prefill"),
    [
        ("discard", 0, [("r", "discard", 4)] * 2, [], 8 + 1 + 4),
        ("swap", 8, [("r", "swap", 0)], [], 1 + 4),
        ("preserve", 0, [], [("discard", 12)], 1 + 4),
        ("preserve", 8, [], [("swap", 0)], 1 + 4),
    ],
)
def test_who_gives_up_kv(
    policy: Any, num_cpu_blocks: int, evicted: list[Any], preempted: list[Any], num_prefill: int, tmp_path: Path
) -> None:
    """A BLOCKED sequence gives up a block each time that one is missing, or is swapped; else a running one does."""
    recorded = under_pressure(tmp_path / "run.jsonl", policy=policy, num_cpu_blocks=num_cpu_blocks)
    gone = only(recorded, events.Evicted), only(recorded, events.Preempted)
    assert [(event.sequence, event.means, event.num_recomputed) for event in gone[0]] == evicted
    assert [(event.means, event.num_recomputed) for event in gone[1]] == preempted
    swapped = [event.sequence for each in gone for event in each if event.means == "swap"]
    assert [event.sequence for event in only(recorded, events.SwappedIn)] == swapped
    assert all(step.num_unshared_blocks == step.num_used_blocks for step in only(recorded, events.Step))
    assert [join.num_prefill for join in only(recorded, Joined)] == [num_prefill]


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
    assert step["decode"] == ["r"]


class TestRecorder:
    def test_it_appends(self, tmp_path: Path) -> None:
        """Two schedulers of one engine write to one file, each under its own stream name."""
        path = tmp_path / "run.jsonl"
        recorder.begin(str(path), "a model", HOOKS)
        for _ in range(2):
            Recorder(str(path), lambda: 1.5).note(events.SwappedIn, sequence="r")
        first, second = read(path).events
        assert first.stream != second.stream
        assert (first.time, second.time) == (1.5, 1.5)

    def test_a_line_is_there_as_soon_as_it_is_written(self, tmp_path: Path) -> None:
        """A crash loses nothing; the file is closed when its scheduler is gone."""
        recorder = Recorder(str(tmp_path / "run.jsonl"), lambda: 0.0)
        recorder.note(events.SwappedIn, sequence="r")
        assert (tmp_path / "run.jsonl").read_bytes().endswith(b'"sequence":"r"}\n')
        file = recorder._file
        del recorder
        gc.collect()
        assert file.closed

    def test_a_full_disk_ends_the_recording_and_not_the_engine(self, caplog: pytest.LogCaptureFixture) -> None:
        """The end of the recording is logged."""
        hooks = dataclasses.replace(HOOKS, record_to="/dev/full")
        engine = SurgicalEngine(hooks, scheduler_cls=TickingScheduler)
        engine.add()
        engine.run(plan(r="a"))
        assert finished(engine).text == "a"
        assert "The recording /dev/full ends here: it cannot be written to" in caplog.text


def test_its_header_tells_of_model_and_hooks(tmp_path: Path) -> None:
    """It begins the file anew; of the hooks' fields it has only those that were given."""
    path = tmp_path / "run.jsonl"
    fork_and_join(path)
    hooks = dataclasses.replace(HOOKS, child_sampling_params={"max_tokens": 3}, record_to=str(path))
    recorder.begin(str(path), "a model", hooks)
    recording = read(path)
    assert (recording.run.version, recording.run.model, recording.events) == (events.FORMAT_VERSION, "a model", ())
    given = {"sync_token_id": SYNC, "promise_token_id": PROMISE, "child_sampling_params": {"max_tokens": 3}}
    assert recording.run.hooks == given


class TestField:
    @pytest.mark.parametrize(
        ("value", "way_out"),
        [("/no/such/folder/run.jsonl", "make its folder first"), (str(Path(__file__).parent), "this is a folder")],
    )
    def test_what_cannot_be_a_file_is_refused(self, value: Any, way_out: str) -> None:
        """The error names the field, its value and the way out."""
        with pytest.raises(ValueError, match=f"special_kwargs: record_to is {value!r}; .*{way_out}"):
            SpecialKwargs(sync_token_id=SYNC, record_to=value)

    def test_a_file_that_cannot_be_written_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is refused before a model is loaded."""

        def refuse(*args: Any) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        path = tmp_path / "run.jsonl"
        monkeypatch.setattr(Path, "write_bytes", refuse)
        with pytest.raises(ValueError, match=r"record_to is .*can be written \(.*Permission denied"):
            recorder.begin(str(path), "a model", HOOKS)

    @pytest.mark.parametrize("is_recorded", [True, False])
    def test_a_file_is_made_if_it_is_asked_for(self, is_recorded: bool, tmp_path: Path) -> None:
        """It is made with the engine's configuration; the scheduler is the same either way."""
        path = str(tmp_path / "run.jsonl")
        hooks = SpecialKwargs(sync_token_id=SYNC, record_to=path if is_recorded else None)
        config = EngineArgs(str(MODEL_FOLDER), special_kwargs=hooks).create_engine_config()
        chosen = resolve_obj_by_qualname(config.scheduler_config.scheduler_cls)
        assert chosen is HookScheduler
        assert Path(path).exists() is is_recorded
