# SPDX-License-Identifier: Apache-2.0
"""``stream_children``: each step's output has what children have sampled, for a request that asks for it."""

import dataclasses

import pytest

from mytests.surgical import EOS, HOOKS, SYNC_HOOKS, SurgicalEngine, finished, ids, plan
from sequence_hooks.results import ChildDelta
from vllm.sampling_params import RequestOutputKind

STREAMED = {"stream_children": True}


def deltas_of(engine: SurgicalEngine, request_id: str) -> list[ChildDelta]:
    """Of one child, in order."""
    return [delta for delta in engine.deltas if delta.request_id == request_id]


class TestDeltas:
    def test_a_token_each_and_a_reason_with_the_last(self) -> None:
        """They name the child, its parent, and where it was spawned."""
        engine = SurgicalEngine(HOOKS)
        engine.add(extra_args=STREAMED)
        engine.run(plan(r="a!z", r_child_0="BC"))
        assert deltas_of(engine, "r_child_0") == [
            ChildDelta("r_child_0", "r", 0, 2, "B", (ord("B"),), None),
            ChildDelta("r_child_0", "r", 0, 2, "C", (ord("C"),), None),
            ChildDelta("r_child_0", "r", 0, 2, "", (EOS,), "stop"),
        ]
        engine.assert_empty()

    def test_what_a_child_gets_from_its_own_comes_at_once(self) -> None:
        """Merged text, and the token behind it."""
        engine = SurgicalEngine(dataclasses.replace(HOOKS, max_child_depth=2))
        engine.add(extra_args=STREAMED)
        engine.run(plan(r="!z", r_child_0="!y", r_child_0_child_0="BC"))
        assert [delta.text for delta in deltas_of(engine, "r_child_0")] == ["", "BCy", ""]
        assert {delta.parent_id for delta in deltas_of(engine, "r_child_0_child_0")} == {"r_child_0"}

    @pytest.mark.parametrize("extra_args", [None, {"stream_children": False}])
    def test_none_where_nobody_asks(self, extra_args: dict[str, bool] | None) -> None:
        """A child has no output of its own then."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add(extra_args=extra_args)
        engine.run(plan(r="!.z", r_child_0="B"))
        assert engine.deltas == []

    def test_a_parent_that_waits_at_its_end_has_not_stopped(self) -> None:
        """Its stop reason comes with its finish reason, behind what its children bring."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add(output_kind=RequestOutputKind.DELTA, stop_token_ids=[ord("q")])
        engine.step(plan(r="!", r_child_0="BC"))
        engine.step(plan(r="!q", r_child_0="BC"))
        assert (engine.statuses()["r"], engine.outputs["r"].outputs[0].stop_reason) == ("BLOCKED", None)
        engine.run(plan(r="!q", r_child_0="BC"))
        assert finished(engine).stop_reason == ord("q")

    def test_the_parents_own_stream_is_its_own(self) -> None:
        """Its deltas begin behind what it has sent, and its tree comes with the last."""
        engine = SurgicalEngine(HOOKS)
        engine.add(extra_args=STREAMED, output_kind=RequestOutputKind.DELTA)
        engine.run(plan(r="a!z", r_child_0="BC"))
        assert list(finished(engine).token_ids) == [EOS]
        assert [child.token_ids for child in finished(engine).children] == [(*ids("BC"), EOS)]
