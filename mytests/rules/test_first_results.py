# SPDX-License-Identifier: Apache-2.0
"""With ``join_when`` a parent resumes when that many children have a result; the remaining children are cancelled."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.handlers import FORK, own
from mytests.harness.injecting import moves, prefilled
from mytests.harness.released import assert_released
from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SpecialKwargs, SurgicalEngine, completed, finished, plan

LONG = "L" * 40


def first(join_when: int | None, hooks: SpecialKwargs = SYNC_HOOKS, **fields: Any) -> SpecialKwargs:
    """Hooks with which a wait ends when ``join_when`` children have a result."""
    return dataclasses.replace(hooks, join_when=join_when, **fields)


def ends(output: Any) -> list[tuple[str | None, bool, bool]]:
    """How its children ended: their finish reasons, whether they were cancelled, and whether they failed."""
    return [(child.finish_reason, child.cancelled, child.failed) for child in output.children]


CANCELLED = ("cancelled", True, False)
STOPPED = ("stop", False, False)


class TestFirst:
    def test_the_rest_is_cancelled(self) -> None:
        """At once: a cancelled child gets no further token, and contributes nothing."""
        output = completed(SurgicalEngine(first(1)), r="!!.z", r_child_0=LONG, r_child_1="VW")
        assert (output.text, output.finish_reason) == ("VWz", "stop")
        assert ends(output) == [CANCELLED, STOPPED]
        cancelled = output.children[0]
        assert 0 < len(cancelled.token_ids) < 9 and cancelled.result_token_ids == ()
        assert cancelled.text == "L" * len(cancelled.token_ids)

    @pytest.mark.parametrize(
        ("join_when", "text", "cancelled"),
        [
            (1, "Dz", [0, 1, 2]),
            (2, "B\nDz", [0, 2]),
            (3, "B\nCCCC\nDz", [0]),
            (4, None, []),
            (9, None, []),
            (None, None, []),
        ],
    )
    def test_so_many_are_joined_in_spawn_order(
        self, join_when: int | None, text: str | None, cancelled: list[int]
    ) -> None:
        """More than there are is all of them."""
        hooks = first(join_when, HOOKS, children_per_promise=4, child_prefix_token_ids=((4,), (6,), (7,), (8,)))
        texts = {"r_child_0": "A" * 8, "r_child_1": "B", "r_child_2": "CCCC", "r_child_3": "D"}
        if join_when == 1:
            texts["r_child_1"] = "BB"
        output = completed(SurgicalEngine(hooks), r="!z", **texts)
        assert output.text == (text or "A" * 8 + "\nB\nCCCC\nDz")
        assert [number for number, child in enumerate(output.children) if child.cancelled] == cancelled

    def test_of_those_that_finish_together_the_first_in_spawn_order_are_joined(self) -> None:
        """The others have ended by themselves, and count as cancelled: their results stand nowhere."""
        output = completed(SurgicalEngine(first(2)), r="!!!!.z", **{f"r_child_{each}": "AB" for each in range(4)})
        (steps,) = output.joins
        assert len([child for child in output.children if not child.cancelled]) == 2
        assert (output.text, steps.num_merged) == ("AB\nABz", 5)

    def test_those_that_had_finished_before_the_sync_count(self) -> None:
        """More than so many have a result when it is sampled."""
        output = completed(
            SurgicalEngine(first(2)), r="!!!!aaaaaa.z", r_child_0=LONG, r_child_1="B", r_child_2="C", r_child_3="D"
        )
        assert output.text == "aaaaaaB\nCz"
        assert ends(output) == [CANCELLED, STOPPED, STOPPED, ("stop", True, False)]
        assert output.children[3].result_token_ids == (ord("D"),)

    def test_at_its_end_it_waits_alike(self) -> None:
        """The implicit join is a wait for all that are unjoined."""
        output = completed(SurgicalEngine(first(1)), r="a!!", r_child_0=LONG, r_child_1="VW")
        assert (output.text, output.finish_reason, ends(output)) == ("aVW", "stop", [CANCELLED, STOPPED])

    def test_each_wait_counts_for_itself(self) -> None:
        """What was joined or cancelled before is not awaited again."""
        output = completed(
            SurgicalEngine(first(1)), r="!!.b!!.z", r_child_0=LONG, r_child_1="B", r_child_2="C", r_child_3=LONG
        )
        assert output.text == "BbCz"
        assert ends(output) == [CANCELLED, STOPPED, STOPPED, CANCELLED]

    def test_a_handler_may_say_it_for_its_token(self) -> None:
        """Other waits are for all, or for what is configured."""
        hooks = first(None, handlers={FORK: own("Some")})
        output = completed(
            SurgicalEngine(hooks), r="!!1*b!!.z", r_child_0=LONG, r_child_1="B", r_child_2="C", r_child_3="D"
        )
        assert output.text == "1*BbC\nDz"

    def test_a_handlers_number_goes_before_the_configured_one(self) -> None:
        """So that it can wait for all."""
        hooks = first(1, handlers={FORK: own("Some")})
        output = completed(
            SurgicalEngine(hooks), r="!!9*b!!.z", r_child_0="A" * 9, r_child_1="B", r_child_2=LONG, r_child_3="D"
        )
        assert output.text == "9*" + "A" * 9 + "\nBbDz"

    def test_of_named_children(self) -> None:
        """The rest of those that it has named is cancelled; the others run on."""
        hooks = first(None, handlers={FORK: own("NamedFirst")})
        output = completed(SurgicalEngine(hooks), r="!!!01*b.z", r_child_0=LONG, r_child_1="BB", r_child_2="C" * 20)
        assert (output.text, ends(output)) == ("01*BBb" + "C" * 20 + "z", [CANCELLED, STOPPED, STOPPED])


class TestFailures:
    def test_a_failed_child_is_no_result(self) -> None:
        """Its parent waits for another."""
        engine = SurgicalEngine(first(1))
        engine.add()
        tokens = plan(r="!!.z", r_child_0=LONG, r_child_1="V" * 9)
        engine.run_until(lambda: engine.statuses().get("r") == "BLOCKED", tokens)
        engine.abort("r_child_0")
        engine.run(tokens)
        output = finished(engine)
        assert (output.text, ends(output)) == ("V" * 9 + "z", [("abort", True, True), STOPPED])
        engine.assert_empty()

    def test_where_all_have_failed_so_many_are_joined_as_nothing(self) -> None:
        """No sequence waits forever."""
        engine = SurgicalEngine(first(1))
        engine.add()
        tokens = plan(r="!!.z", r_child_0=LONG, r_child_1=LONG)
        engine.run_until(lambda: engine.statuses().get("r") == "BLOCKED", tokens)
        engine.abort(["r_child_0", "r_child_1"])
        engine.run(tokens)
        output = finished(engine)
        assert (output.text, [child.failed for child in output.children]) == ("z", [True, True])
        engine.assert_empty()

    @pytest.mark.parametrize("name", ["r", "r_child_0"])
    def test_an_abort_is_an_abort(self, name: str) -> None:
        """Whoever is below a sequence that its caller has aborted is not told as cancelled."""
        engine = SurgicalEngine(first(1, max_child_depth=2))
        engine.add()
        tokens = plan(r="!!.z", r_child_0="!." + LONG, r_child_1=LONG, r_child_0_child_0=LONG)
        engine.run_until(lambda: "r_child_0_child_0" in engine.statuses(), tokens)
        engine.abort(name)
        assert engine.driver.trees.stats.num_cancelled == 0
        engine.abort("r") if name != "r" else None
        engine.run(tokens)
        engine.assert_empty()


class TestTrees:
    def test_what_is_below_is_cancelled_with_it(self) -> None:
        """Whatever it does: it waits, runs, or has ended and waits for its own."""
        texts = {
            "r": "!!.z",
            "r_child_0": "!!.a",
            "r_child_0_child_0": LONG,
            "r_child_0_child_1": "B",
            "r_child_1": "V" * 6,
        }
        output = completed(SurgicalEngine(first(1, max_child_depth=2)), **{**texts, "r_child_0_child_1": LONG})
        assert (output.text, ends(output)) == ("V" * 6 + "z", [CANCELLED, STOPPED])
        assert ends(output.children[0]) == [CANCELLED, CANCELLED]

    def test_one_that_waits_at_its_end_has_no_result_yet(self) -> None:
        """It has one when it is joined."""
        texts = {"r": "!!.z", "r_child_0": "a!", "r_child_0_child_0": LONG, "r_child_1": "V" * 6}
        output = completed(SurgicalEngine(first(1, max_child_depth=2)), **texts)
        assert (output.text, ends(output)) == ("V" * 6 + "z", [CANCELLED, STOPPED])

    def test_one_that_was_never_admitted_is_cancelled_too(self) -> None:
        """It has sampled nothing."""
        engine = SurgicalEngine(first(1), max_num_seqs=2)
        output = completed(engine, r="!!!.z", r_child_0="A", r_child_1=LONG, r_child_2=LONG)
        assert (output.text, ends(output)[2]) == ("Az", CANCELLED)

    def test_detached_children_are_not_awaited(self) -> None:
        """A wait is for the others alone, and cancels none of them."""
        engine = SurgicalEngine(dataclasses.replace(SpecialKwargs(handlers={FORK: own("Pair")}), join_when=1))
        output = completed(engine, r="a*z", r_child_0="B" * 9, r_child_1="C", r_child_2="D")
        assert not any(child.cancelled for child in output.children)

    @pytest.mark.parametrize("most", range(4, 30, 3))
    def test_a_budget_ends_it_in_any_case(self, most: int) -> None:
        """All its sequences have ended, as finished or as cancelled, and nothing is left."""
        engine = SurgicalEngine(first(1, max_child_depth=2, max_tree_tokens=most), max_num_seqs=4)
        texts = {"r": "!!.!.z", "r_child_0": "!!.a", "r_child_1": LONG, "r_child_2": LONG}
        below = {f"r_child_0_child_{each}": "B" * 5 for each in (0, 1)}
        output = completed(engine, **texts, **below)
        assert output.finish_reason in ("length", "stop")

    def test_a_callers_turn_comes_with_the_join(self) -> None:
        """Until then the rest runs on, and may have results as well."""
        engine = SurgicalEngine(first(1, sync_resume="manual"))
        engine.add()
        tokens = plan(r="!!.z", r_child_0="A" * 9, r_child_1="B")
        engine.run_until(lambda: engine.is_waiting_for_callers(), tokens)
        assert engine.waits()[0].num_unfinished_children == 0
        engine.resume("r", "!tool")
        engine.run(tokens)
        output = finished(engine)
        assert (output.text, ends(output)) == ("A" * 9 + "!tool" + "z", [STOPPED, ("stop", True, False)])
        engine.assert_empty()


class TestAccounting:
    def test_usage_counts_what_cancelled_children_have_sampled(self) -> None:
        """They have cost what any token costs; metrics count the children."""
        engine = SurgicalEngine(first(1))
        output = completed(engine, r="!!.z", r_child_0=LONG, r_child_1="VW")
        num_cancelled = len(output.children[0].token_ids)
        assert output.tree_tokens.sampled_below == num_cancelled + 3
        stats = engine.driver.trees.stats
        assert (stats.num_spawned, stats.num_failed, stats.num_cancelled) == (2, 0, 1)

    def test_logprobs_are_of_the_joined_child(self) -> None:
        """And the cancelled one has its own."""
        output = completed(SurgicalEngine(first(1)), params={"logprobs": 1}, r="!!.z", r_child_0=LONG, r_child_1="VW")
        assert len(output.logprobs) == len(output.token_ids)
        assert len(output.children[0].logprobs) == len(output.children[0].token_ids)

    def test_a_stream_of_children_tells_it(self) -> None:
        """The last delta of a cancelled child has no tokens but those that it has sampled, and says so."""
        engine = SurgicalEngine(first(1))
        params = {"extra_args": {"stream_children": True}}
        output = completed(engine, params=params, r="!!.z", r_child_0=LONG, r_child_1="VW")
        told = [delta for delta in engine.deltas if delta.request_id == "r_child_0"]
        assert told[-1].finish_reason == "cancelled"
        assert sum(len(delta.token_ids) for delta in told) == len(output.children[0].token_ids)

    def test_a_stream_tells_it_before_the_end_of_the_request(self) -> None:
        """Also where its parent ends with its first token after the join."""
        engine = SurgicalEngine(first(1))
        engine.add(extra_args={"stream_children": True})
        tokens = plan(r="!!.", r_child_0=LONG, r_child_1="VW")
        engine.run_until(lambda: any(output.finished for output in engine.handed_out), tokens)
        assert engine.handed_out[-1].finished
        assert {each.finish_reason for each in engine.deltas} == {None, "stop", "cancelled"}
        engine.assert_empty()

    def test_a_stream_tells_it_when_its_parent_goes_on(self) -> None:
        """And not as late as the end of its request, which may be far away."""
        engine = SurgicalEngine(first(1))
        engine.add(extra_args={"stream_children": True})
        tokens = plan(r="!!." + "z" * 9, r_child_0=LONG, r_child_1="VW")
        engine.run_until(lambda: engine.num_sampled("r") == 6, tokens)
        assert [each.request_id for each in engine.deltas if each.finish_reason == "cancelled"] == ["r_child_0"]
        engine.run(tokens)
        engine.assert_empty()

    def test_a_stream_tells_of_it_where_an_abort_lets_its_parent_go_on(self) -> None:
        """The join comes between two steps, and the request ends in the next one."""
        engine = SurgicalEngine(first(1))
        engine.add(extra_args={"stream_children": True})
        tokens = plan(r="!!!.", r_child_0="!" * 40, r_child_1="!" * 40, r_child_2="VW")
        engine.run_until(lambda: engine.statuses().get("r") == "BLOCKED", tokens)
        engine.abort(["r_child_1", "r_child_0"])
        engine.run_until(lambda: any(output.finished for output in engine.handed_out), tokens)
        assert engine.handed_out[-1].finished
        engine.assert_empty()

    def test_it_keeps_no_context(self) -> None:
        """A tree lives as long as its request, and a cancelled child needs as little as a joined one."""
        engine = SurgicalEngine(first(1))
        engine.add()
        tokens = plan(r="!!.z" + "z" * 9, r_child_0=LONG, r_child_1="V")
        engine.run_until(lambda: engine.num_sampled("r") == 5, tokens)
        (root,) = engine.scheduler.trees.roots
        for child in root.children:
            assert_released(child)
        engine.run(tokens)
        engine.assert_empty()


class TestKV:
    @pytest.mark.parametrize("rule", ["sequential", "overlap"])
    def test_what_is_joined_is_injected(self, rule: Any) -> None:
        """What is kept of one that was too late is given back."""
        hooks = first(1, child_merge_strategy="kv_inject", position_rule=rule)
        engine = SurgicalEngine(hooks)
        output = completed(engine, r="!!!aaaaaaa.z", r_child_0=LONG, r_child_1="VWXYZ", r_child_2="KLMN")
        assert (output.text, prefilled(engine), len(moves(engine))) == ("aaaaaaaVWXYZz", [2], 4)

    def test_its_blocks_are_free_before_its_parent_needs_them(self) -> None:
        """The children hold all there is."""
        engine = SurgicalEngine(first(1), num_blocks=9, max_model_len=32, max_num_seqs=4)
        engine.add(prompt="p")
        engine.run(plan(r="!!." + "z" * 20, r_child_0=LONG, r_child_1="V" * 8))
        assert finished(engine).text == "V" * 8 + "z" * 20
        engine.assert_empty()

    @pytest.mark.parametrize("num_blocks", [9, 10, 11, 12, 14, 20])
    @pytest.mark.parametrize("merge", ["kv_inject", "concatenate"])
    def test_under_pressure_nothing_is_left(self, merge: str, num_blocks: int) -> None:
        """Sequences are preempted and lose their KV meanwhile."""
        hooks = first(1, child_merge_strategy=merge, max_child_depth=2)
        engine = SurgicalEngine(hooks, num_blocks=num_blocks, max_model_len=32, max_num_seqs=4)
        texts = {"r": "!!.b!!.z", "r_child_0": LONG, "r_child_1": "!V.", "r_child_1_child_0": "CC"}
        engine.add(prompt="p")
        engine.run(plan(**texts, r_child_2=LONG, r_child_3="D"), max_steps=500)
        assert finished(engine).text == "VCCbDz"
        engine.assert_empty()
