# SPDX-License-Identifier: Apache-2.0
"""`SpecialKwargs.record_to`: the file, who writes to it, and that the engine runs as it does without it."""

import dataclasses
import errno
import gc
from pathlib import Path
from typing import Any

import pytest
from forkjoin_engine import MODEL_FOLDER

from mytests.harness.surgical import HOOKS, PROMISE, SYNC, SurgicalEngine, finished, plan
from mytests.harness.v0.recorded import TickingScheduler, fork_and_join
from sequence_hooks.trace import events, recorder
from sequence_hooks.trace.reader import read
from sequence_hooks.trace.recorder import Recorder
from vllm.config import SpecialKwargs
from vllm.core.hook_scheduler import HookScheduler
from vllm.engine.arg_utils import EngineArgs
from vllm.utils import resolve_obj_by_qualname


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
        [
            (7, "as a string"),
            ("/no/such/folder/run.jsonl", "make its folder first"),
            (str(Path(__file__).parent), "this is a folder"),
        ],
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
