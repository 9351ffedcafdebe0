# SPDX-License-Identifier: Apache-2.0
"""With data parallelism and experts, engines compute together, also if a resumption needs no step of its own engine."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine, plan
from mytests.harness.v1.releases import IS_REFERENCE
from sequence_hooks.v1.core.lockstep import PendingDummyStep
from vllm.v1.engine.core import DPEngineCoreProc
from vllm.v1.request import RequestStatus

pytestmark = pytest.mark.skipif(not IS_REFERENCE, reason="upstream's loop needs other attributes in each release")

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")
SCRIPT = plan(r="a.b")


class Asleep:
    """What upstream's loop asks of its executor."""

    is_sleeping = False


class Loop(DPEngineCoreProc):
    """Upstream's loop around a surgical engine, and no other engines; ``before`` is done before each iteration."""

    def __init__(self, engine: SurgicalEngine, before: list[Callable[[], None]]) -> None:
        self.engine, self.scheduler = engine, engine.scheduler
        self.model_executor: Any = Asleep()
        self.eep_scaling_state, self.enable_fault_tolerance = None, False
        self.engines_running, self.has_coordinator, self.pending_pause = False, True, False
        self.current_wave, self.step_counter, self.dp_rank = 0, 0, 1
        self.num_dummy_batches = 0
        self._before = before

    def _handle_shutdown(self) -> bool:
        return bool(self._before)

    def _process_input_queue(self) -> None:
        self._before.pop(0)()

    def _process_engine_step(self) -> bool:
        if not self.scheduler.has_requests():
            return False
        return bool(self.engine.step(SCRIPT))

    @contextmanager
    def capture_iteration_details(self, scheduler_output: Any) -> Iterator[None]:
        yield

    def _maybe_publish_request_counts(self) -> None:
        """Do nothing: nobody balances load."""

    def execute_dummy_batch(self) -> None:
        self.num_dummy_batches += 1

    def _has_global_unfinished_reqs(self, local_unfinished: bool) -> bool:
        return local_unfinished


def nothing() -> None:
    """What clients ask for in most iterations."""


def waiting_engine(monkeypatch: pytest.MonkeyPatch) -> SurgicalEngine:
    """An engine of several, whose only sequence waits for its caller with room for one more token."""
    engine = SurgicalEngine(MANUAL, max_model_len=9)
    monkeypatch.setattr(engine.scheduler._pending_step, "_is_in_lockstep", True)
    engine.add("r")
    engine.run_until(engine.is_waiting_for_callers, SCRIPT)
    return engine


@pytest.mark.parametrize("aborts", [False, True], ids=["without room", "aborted meanwhile"])
def test_a_resumption_without_a_step_is_a_step_of_all(aborts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others were woken by it, and wait in their model until this engine computes, too; afterwards it sleeps."""
    engine = waiting_engine(monkeypatch)

    def resume() -> None:
        if aborts:
            # The front end learns of it later.
            engine.scheduler.finish_requests(["r"], RequestStatus.FINISHED_ABORTED)
        engine.resume("r", "t")
        if aborts:
            engine.abort("r")

    loop = Loop(engine, [resume, nothing, nothing])
    with pytest.raises(SystemExit):
        loop.run_busy_loop()
    assert loop.num_dummy_batches == 2
    assert not loop.engines_running
    engine.assert_empty()


def test_a_resumption_with_a_step_needs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own step is the one that the others wait for."""
    engine = waiting_engine(monkeypatch)
    loop = Loop(engine, [lambda: engine.resume("r", None), nothing])
    with pytest.raises(SystemExit):
        loop.run_busy_loop()
    assert loop.num_dummy_batches == 0
    engine.assert_empty()


def test_an_engine_alone_owes_no_step() -> None:
    """Nobody waits for it."""
    owed = PendingDummyStep(is_in_lockstep=False)
    owed.begin()
    assert not owed
