# SPDX-License-Identifier: Apache-2.0
"""With ``join_when`` a parent resumes when that many children have a result; see also `test_cancelled.py`."""

from typing import Any

import pytest

from mytests.harness.handlers import FORK, hooks_with, own
from mytests.harness.injecting import moves, prefilled
from mytests.harness.outcomes import LONG, Case, ends, rules
from mytests.harness.surgical import SpecialKwargs, SurgicalEngine, begun, completed, finished, plan, tree

FIRST = hooks_with(join_when=1)
SOME = {FORK: own("Some")}


@pytest.mark.rule(18)
class TestFirst:
    def test_the_rest_is_cancelled(self) -> None:
        """At once: a cancelled child gets no further token, contributes nothing, and has the logprobs of its own."""
        output = completed(SurgicalEngine(FIRST), params={"logprobs": 1}, r="!!.z", r_child_0=LONG, r_child_1="VW")
        assert (output.text, output.finish_reason, ends(output)) == ("VWz", "stop", "cancelled stop")
        cancelled = output.children[0]
        assert 0 < len(cancelled.token_ids) < 9 and cancelled.result_token_ids == ()
        assert cancelled.text == "L" * len(cancelled.token_ids)
        assert [len(each.logprobs) - len(each.token_ids) for each in (output, cancelled)] == [0, 0]

    @pytest.mark.parametrize(
        ("join_when", "children", "text", "cancelled"),
        [
            (1, ["A" * 8, "BB", "CCCC", "D"], "Dz", [0, 1, 2]),
            (2, ["A" * 8, "B", "CCCC", "D"], "B\nDz", [0, 2]),
            (3, ["A" * 8, "B", "CCCC", "D"], "B\nCCCC\nDz", [0]),
            (4, ["A" * 8, "B", "CCCC", "D"], "AAAAAAAA\nB\nCCCC\nDz", []),
            (9, ["A" * 8, "B", "CCCC", "D"], "AAAAAAAA\nB\nCCCC\nDz", []),
            (2, ["AB"] * 4, "AB\nABz", [2, 3]),
        ],
    )
    def test_so_many_are_joined_in_spawn_order(
        self, join_when: int, children: list[str], text: str, cancelled: list[int]
    ) -> None:
        """More than there are is all of them; of those that finish together, the first ones."""
        prefixes = ((4,), (6,), (7,), (8,))
        hooks = hooks_with(
            join_when=join_when, block_on="promise", children_per_promise=4, child_prefix_token_ids=prefixes
        )
        output = completed(SurgicalEngine(hooks), **tree("!z", *children))
        assert output.text == text
        assert [number for number, child in enumerate(output.children) if child.cancelled] == cancelled

    @rules(
        {
            "what has finished before the sync counts": Case(
                hooks_with(join_when=2), "!!!!aaaaaa.z", LONG, "B", "C", "D",
                text="aaaaaaB\nCz", ends="cancelled stop stop late",
            ),
            "an end waits alike": Case(FIRST, "a!!", LONG, "VW", text="aVW", ends="cancelled stop"),
            "each wait counts for itself": Case(
                FIRST, "!!.b!!.z", LONG, "B", "C", LONG, text="BbCz", ends="cancelled stop stop cancelled"
            ),
            "a handler says it for its token": Case(
                hooks_with(handlers=SOME), "!!1*b!!.z", LONG, "B", "C", "D",
                text="1*BbC\nDz", ends="cancelled stop stop stop",
            ),
            "a handler's number goes before the configured one": Case(
                hooks_with(join_when=1, handlers=SOME), "!!9*b!!.z", "AAAAAAAAA", "B", LONG, "D",
                text="9*AAAAAAAAA\nBbDz", ends="stop stop cancelled stop",
            ),
            "it counts the named children": Case(
                hooks_with(handlers={FORK: own("NamedFirst")}), "!!!01*b.z", LONG, "BB", "C" * 20,
                text=f"01*BBb{'C' * 20}z", ends="cancelled stop stop",
            ),
            "detached children are not awaited": Case(
                SpecialKwargs(handlers={FORK: own("Pair")}, join_when=1), "a*z", "BBB", "C", "D", ends="stop stop stop",
            ),
        }
    )  # fmt: skip
    def test_a_wait_comes_to(self, case: Case) -> None:
        """A text, and ends of the children; a result that comes too late is kept in the tree."""
        output = case.check()
        assert all(child.result_token_ids for child in output.children if child.finish_reason == "stop")


@pytest.mark.rule(18)
@pytest.mark.parametrize(
    ("aborted", "second", "text", "told"),
    [(["r_child_0"], "VVVVVVVVV", "VVVVVVVVVz", "aborted stop"), (["r_child_0", "r_child_1"], LONG, "z", None)],
    ids=["one", "all"],
)
def test_a_failed_child_is_no_result(aborted: list[str], second: str, text: str, told: str | None) -> None:
    """Its parent waits for another; where all have failed, so many are joined as nothing."""
    engine, script = SurgicalEngine(FIRST), plan(**tree("!!.z", LONG, second))
    with begun(engine, script, lambda: engine.statuses().get("r") == "BLOCKED"):
        engine.abort(aborted)
    output = finished(engine)
    assert (output.text, [child.failed for child in output.children].count(True)) == (text, len(aborted))
    assert told is None or ends(output) == told


@pytest.mark.rule(18)
def test_a_callers_turn_comes_with_the_join() -> None:
    """Until then the rest runs on, and may have results as well."""
    engine = SurgicalEngine(hooks_with(join_when=1, sync_resume="manual"))
    with begun(engine, plan(r="!!.z", r_child_0="A" * 9, r_child_1="B"), lambda: engine.is_waiting_for_callers()):
        assert engine.waits()[0].num_unfinished_children == 0
        engine.resume("r", "!tool")
    assert (finished(engine).text, ends(finished(engine))) == ("A" * 9 + "!tool" + "z", "stop late")


class TestStreams:
    def test_one_tells_it_when_its_parent_goes_on(self) -> None:
        """And not as late as the end of its request, which may be far away."""
        engine = SurgicalEngine(FIRST)
        script = plan(r="!!." + "z" * 9, r_child_0=LONG, r_child_1="VW")
        with begun(engine, script, lambda: engine.num_sampled("r") == 6, extra_args={"stream_children": True}):
            assert [each.request_id for each in engine.deltas if each.finish_reason == "cancelled"] == ["r_child_0"]

    def test_one_tells_of_it_where_an_abort_lets_its_parent_go_on(self) -> None:
        """The join comes between two steps, and the request ends in the next one."""
        engine = SurgicalEngine(FIRST)
        engine.add(extra_args={"stream_children": True})
        tokens = plan(r="!!!.", r_child_0="!" * 40, r_child_1="!" * 40, r_child_2="VW")
        engine.run_until(lambda: engine.statuses().get("r") == "BLOCKED", tokens)
        engine.abort(["r_child_1", "r_child_0"])
        engine.run_until(lambda: any(output.finished for output in engine.handed_out), tokens)
        assert engine.handed_out[-1].finished
        engine.assert_empty()


@pytest.mark.rule(18)
@pytest.mark.parametrize("rule", ["sequential", "overlap"])
def test_what_is_joined_is_injected(rule: Any) -> None:
    """What is kept of one that was too late is given back."""
    engine = SurgicalEngine(hooks_with(join_when=1, child_merge_strategy="kv_inject", position_rule=rule))
    output = completed(engine, **tree("!!!aaaaaaa.z", LONG, "VWXYZ", "KLMN"))
    assert (output.text, prefilled(engine), len(moves(engine))) == ("aaaaaaaVWXYZz", [2], 4)
