# SPDX-License-Identifier: Apache-2.0
"""What V1's scheduler keeps of finished children until their parents are joined, and who gives it up."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.injecting import OVERLAP, SYNC_INJECT, moves, prefilled
from mytests.harness.surgical import SurgicalEngine, finished, plan
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus


def failing_at(token: str) -> Any:
    """Upstream's way to append a token, with an error at this one."""
    append: Any = Scheduler._update_request_with_output

    def append_or_fail(scheduler: Any, request: Any, new_token_ids: list[int], *args: Any) -> tuple[list[int], bool]:
        token_ids, stopped = append(scheduler, request, new_token_ids, *args)
        if token_ids == [ord(token)]:
            request.status = RequestStatus.FINISHED_ERROR
        return token_ids, stopped or request.is_finished()

    return append_or_fail


def test_nothing_is_kept_of_a_child_that_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent gets nothing of it."""
    engine: Any = SurgicalEngine(SYNC_INJECT)
    engine.add(prompt="prompt")
    monkeypatch.setattr(Scheduler, "_update_request_with_output", failing_at("C"))
    script = plan(r="!!.z", r_child_0="ABC", r_child_1="D" * 20)
    engine.run_until(lambda: "r_child_0" not in engine.statuses() and "r_child_1" in engine.statuses(), script)
    assert not engine.scheduler.kv.kept
    engine.run(script)
    assert [child.finish_reason for child in finished(engine).children] == ["error", "stop"]
    engine.assert_empty()


def test_a_child_whose_kept_kv_is_given_up_keeps_its_positions() -> None:
    """Its result is computed anew, where the child had it."""
    engine: Any = SurgicalEngine(dataclasses.replace(OVERLAP, children_per_promise=1, max_child_depth=2))
    request = engine.add(prompt="prompt")
    below = {"r_child_0_child_0": "CDEFGH", "r_child_0_child_1": "IJKLMN"}
    script = plan(r="!!.z!.y", r_child_0="a!!.b", r_child_1="O" * 14, r_child_2="QRS", **below)
    engine.run_until(lambda: engine.scheduler.kv.kept._children.get(request) == ["r_child_0"], script)
    engine.scheduler.kv.kept.release("r_child_0")
    engine.run(script)
    # "b" has position 16, and the separator 17. "z" and the third promise come after the longest result, at 22.
    assert moves(engine)[-2:] == [(24, 24), (25, 25)]
    engine.assert_empty()


def test_kept_kv_is_given_up_before_a_running_request_is_preempted() -> None:
    """Its tokens are prefilled at the join."""
    engine = SurgicalEngine(SYNC_INJECT, num_blocks=11, max_model_len=44)
    engine.add(prompt="prompt")
    engine.run(plan(r="!" + "a" * 22 + ".z", r_child_0="ABCDEFGHIJ"))
    assert (engine.scheduler.evictor.evictions["discard"], engine.num_preemptions()) == (1, 0)
    assert (prefilled(engine), moves(engine)) == ([11], [])
    engine.assert_empty()


def test_a_parent_without_kv_needs_none() -> None:
    """What is kept of its children is given back at once, and the blocks are free for those that run."""
    engine: Any = SurgicalEngine(SYNC_INJECT)
    engine.add(prompt="prompt")
    script = plan(r="!!.z", r_child_0="ABCDE", r_child_1="V" * 9)
    engine.run_until(lambda: bool(engine.scheduler.kv.kept) and "r" in engine.scheduler.blocked, script)
    engine.evict("r")
    assert not engine.scheduler.kv.kept
    engine.run(script)
    engine.assert_empty()
