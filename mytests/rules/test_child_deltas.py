# SPDX-License-Identifier: Apache-2.0
"""``stream_children``: each step's output has what children have sampled, if the request asks for it."""

import dataclasses

import pytest

from mytests.harness.surgical import EOS, HOOKS, SYNC_HOOKS, SurgicalEngine, begun, completed, finished, ids, plan, tree
from sequence_hooks.results import ChildDelta
from vllm.sampling_params import RequestOutputKind

STREAMED = {"stream_children": True}


def deltas_of(engine: SurgicalEngine, request_id: str) -> list[ChildDelta]:
    """The deltas of one child, in order."""
    return [delta for delta in engine.deltas if delta.request_id == request_id]


class TestDeltas:
    def test_one_at_the_spawn_a_token_each_and_a_reason_with_the_last(self) -> None:
        """Each delta names the child, its parent, and where it was spawned."""
        engine = SurgicalEngine(HOOKS)
        completed(engine, params={"extra_args": STREAMED}, r="a!z", r_child_0="BC")
        assert deltas_of(engine, "r_child_0") == [
            ChildDelta("r_child_0", "r", 0, 2, "", (), None),
            ChildDelta("r_child_0", "r", 0, 2, "B", (ord("B"),), None),
            ChildDelta("r_child_0", "r", 0, 2, "C", (ord("C"),), None),
            ChildDelta("r_child_0", "r", 0, 2, "", (EOS,), "stop", num_ending=1),
        ]

    @pytest.mark.rule(10)
    def test_they_come_as_they_are_sampled(self) -> None:
        """Those of several children mixed, also where their results follow each other in their parent's output."""
        engine = SurgicalEngine(SYNC_HOOKS)
        completed(engine, params={"extra_args": STREAMED}, r="!!.z", r_child_0="ABCD", r_child_1="XY")
        told = "".join(delta.text for delta in engine.deltas)
        assert ["".join(filter(its.__contains__, told)) for its in ("ABCD", "XY")] == ["ABCD", "XY"]
        assert told not in ("ABCDXY", "XYABCD")

    def test_the_output_with_a_delta_is_its_requests(self) -> None:
        """It has no completion, and doesn't end the request."""
        engine = SurgicalEngine(HOOKS)
        script = plan(r="!z", r_child_0="B")
        with begun(engine, script, lambda: any(delta.text for delta in engine.deltas), extra_args=STREAMED):
            (output,) = [each for each in engine.handed_out if each.child_deltas]
            assert (output.request_id, output.outputs, output.finished) == ("r", [], False)

    def test_segments_are_told_before_the_end_if_they_are_asked_for(self) -> None:
        """As a view of a stream needs them."""
        engine = SurgicalEngine(HOOKS)
        engine.add(extra_args={"tell_segments": True}, output_kind=RequestOutputKind.DELTA)
        script, told = plan(r="!yz", r_child_0="B"), []
        while engine.has_unfinished():
            engine.step(script)
            told += [each for output in engine.handed_out for each in output.outputs if each.finish_reason is None]
        assert [(each.origin, each.end) for each in told[-1].segments][:2] == [("sampled", 1), ("merged", 2)]
        engine.assert_empty()

    def test_what_a_child_gets_from_its_own_comes_at_once(self) -> None:
        """One delta has the merged text and the token after it."""
        engine = SurgicalEngine(dataclasses.replace(HOOKS, max_child_depth=2))
        completed(engine, params={"extra_args": STREAMED}, **tree("!z", ("!y", "BC")))
        assert [delta.text for delta in deltas_of(engine, "r_child_0")] == ["", "", "BCy", ""]
        assert {delta.parent_id for delta in deltas_of(engine, "r_child_0_child_0")} == {"r_child_0"}

    @pytest.mark.parametrize("extra_args", [None, {"stream_children": False}])
    def test_none_where_nobody_asks(self, extra_args: dict[str, bool] | None) -> None:
        """Without stream_children a child has no output of its own."""
        engine = SurgicalEngine(SYNC_HOOKS)
        completed(engine, params={"extra_args": extra_args}, r="!.z", r_child_0="B")
        assert engine.deltas == []

    def test_a_parent_that_waits_at_its_end_has_not_stopped(self) -> None:
        """Its stop reason comes with its finish reason, after its children's results."""
        engine = SurgicalEngine(SYNC_HOOKS)
        params = {"output_kind": RequestOutputKind.DELTA, "stop_token_ids": [ord("q")]}
        with begun(engine, plan(r="!q", r_child_0="BC"), lambda: engine.statuses().get("r") == "BLOCKED", **params):
            assert engine.outputs["r"].outputs[0].stop_reason is None
        assert finished(engine).stop_reason == ord("q")

    def test_the_parents_own_stream_is_its_own(self) -> None:
        """Its deltas begin after what it has sent, and its tree comes with the last one."""
        engine = SurgicalEngine(HOOKS)
        params = {"extra_args": STREAMED, "output_kind": RequestOutputKind.DELTA}
        output = completed(engine, params=params, r="a!z", r_child_0="BC")
        assert list(output.token_ids) == [EOS]
        assert [child.token_ids for child in output.children] == [(*ids("BC"), EOS)]
