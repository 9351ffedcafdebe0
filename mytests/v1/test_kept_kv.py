# SPDX-License-Identifier: Apache-2.0
"""What V1's scheduler keeps of finished children until their parents are joined, and who gives up KV."""

import dataclasses
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from mytests.harness.injecting import OVERLAP, SYNC_INJECT, moves, prefilled
from mytests.harness.surgical import SurgicalEngine, begun, completed, finished, plan
from sequence_hooks.kv.eviction import EvictionCandidate
from sequence_hooks.v1.core.eviction import KVEvictor
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


def test_kept_kv_is_given_up_before_a_running_request_is_preempted() -> None:
    """Its tokens are prefilled at the join."""
    engine = SurgicalEngine(SYNC_INJECT, num_blocks=11, max_model_len=44)
    completed(engine, r="!" + "a" * 22 + ".z", r_child_0="ABCDEFGHIJ")
    assert (engine.scheduler.evictor.evictions["discard"], engine.num_preemptions()) == (1, 0)
    assert (prefilled(engine), moves(engine)) == ([11], [])


def test_a_parent_without_kv_needs_none() -> None:
    """What is kept of its children is given back at once, and the blocks are free for those that run."""
    engine: Any = SurgicalEngine(SYNC_INJECT)
    script = plan(r="!!.z", r_child_0="ABCDE", r_child_1="V" * 9)
    with begun(engine, script, lambda: bool(engine.scheduler.kv.kept) and "r" in engine.scheduler.blocked):
        engine.evict("r")
        assert not engine.scheduler.kv.kept


def held_by(num_tokens: int) -> EvictionCandidate[Any]:
    """A sequence with so many tokens."""
    fields: dict[str, Any] = {"priority": 0, "num_all": 2, "num_owned": 2, "block_size": 4}
    return EvictionCandidate(holder=MagicMock(), num_computed_tokens=num_tokens, **fields)


class TestEvictor:
    def test_it_counts_all(self) -> None:
        """Evictions, and the tokens whose KV is gone."""
        evictor = KVEvictor(MagicMock(), "discard", MagicMock())
        for num_tokens in (5, 3):
            evictor.note(held_by(num_tokens))
        assert (evictor.evictions, evictor.num_recomputed) == ({"discard": 2}, 8)

    def test_a_group_of_layers_may_hold_nothing_of_a_sequence(self) -> None:
        """Null blocks are nobody's; the others may be shared."""
        null, shared, own = ((True, 1), (False, 2), (False, 1))
        blocks = [SimpleNamespace(is_null=is_null, ref_cnt=count) for is_null, count in (null, shared, own)]
        tables: Iterable[dict[str, Any]] = ({"r": blocks}, {})
        managers = [SimpleNamespace(req_to_blocks=each, block_size=4) for each in tables]
        manager: Any = SimpleNamespace(coordinator=SimpleNamespace(single_type_managers=managers))
        request: Any = SimpleNamespace(request_id="r", priority=1, num_computed_tokens=9)
        candidate = KVEvictor(manager, "discard", MagicMock()).candidate(request)
        assert candidate == EvictionCandidate(request, 1, 2, 1, 4, 9)


@pytest.mark.usefixtures("each_mode")
def test_of_kept_kv_all_but_a_busy_parents_may_be_evicted() -> None:
    """Whoever copies it is busy."""
    engine = SurgicalEngine(SYNC_INJECT)
    for name in "rs":
        engine.add(name, prompt="p" * 3)
    children = {"r_child_0": "AB", "s_child_0": "CDE", "r_child_1": "W" * 9, "s_child_1": "W" * 9}
    script = plan(r="!!.y", s="!!.z", **children)
    engine.run_until(lambda: sorted(engine.statuses()) == ["r", "r_child_1", "s", "s_child_1"], script)
    kept = engine.scheduler.kv.kept
    everybody = [(each.holder.request_id, each.num_computed_tokens) for each in kept.candidates(())]
    assert dict(everybody) == {"r_child_0": 2, "s_child_0": 3}
    busy = [engine.request_of("r")]
    assert [each.holder.request_id for each in kept.candidates(busy)] == ["s_child_0"]
    engine.run(script)
    assert finished(engine, "s").text == "CDE\n" + "W" * 9 + "z"
