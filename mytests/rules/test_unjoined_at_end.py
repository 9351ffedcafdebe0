# SPDX-License-Identifier: Apache-2.0
"""With ``unjoined_at_end="cancel"`` a sequence that ends does without its unjoined children, which are cancelled."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.handlers import FORK, own
from mytests.harness.released import assert_released
from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SpecialKwargs, SurgicalEngine, completed, finished, plan

LONG = "L" * 40
CANCELLED = ("cancelled", True, False)
STOPPED = ("stop", False, False)


def dropping(hooks: SpecialKwargs = SYNC_HOOKS, **fields: Any) -> SpecialKwargs:
    """Hooks with which nobody is awaited at an end."""
    return dataclasses.replace(hooks, unjoined_at_end="cancel", **fields)


def ends(output: Any) -> list[tuple[str | None, bool, bool]]:
    """How its children ended: their finish reasons, whether they were cancelled, and whether they failed."""
    return [(child.finish_reason, child.cancelled, child.failed) for child in output.children]


class TestEnds:
    @pytest.mark.parametrize(
        ("text", "params", "reason"),
        [
            ("a!b", {}, "stop"),
            ("a!bcd", {"stop_token_ids": [ord("c")]}, "stop"),
            ("a!bcd", {"stop": ["c"]}, "stop"),
            ("a!bcd", {"max_tokens": 3}, "length"),
        ],
        ids=["EOS", "stop token", "stop string", "max_tokens"],
    )
    def test_what_is_unjoined_is_cancelled(self, text: str, params: dict[str, Any], reason: str) -> None:
        """Whatever has ended the sequence: it finishes with that reason, and nothing is appended."""
        output = completed(SurgicalEngine(dropping()), params=params, r=text, r_child_0=LONG)
        assert (output.text.rstrip("c"), output.finish_reason, output.joins) == ("a!b".replace("!", ""), reason, ())
        (child,) = output.children
        assert ends(output) == [CANCELLED] and len(child.token_ids) < 6 and child.result_token_ids == ()

    def test_at_the_models_length(self) -> None:
        """It is an end like others."""
        hooks = dropping(child_context="none", child_prefix_token_ids=(4,))
        output = completed(SurgicalEngine(hooks, max_model_len=16), r="!" + "a" * 40, r_child_0=LONG)
        assert (output.finish_reason, ends(output)) == ("length", [CANCELLED])

    def test_at_the_length_that_a_join_by_name_fills(self) -> None:
        """The others are not awaited."""
        hooks = dropping(handlers={FORK: own("Named")}, child_context="none", child_prefix_token_ids=(4,))
        engine = SurgicalEngine(hooks, max_model_len=24)
        output = completed(engine, r="!!0*b", r_child_0="A" * 16, r_child_1="B" * 19)
        assert (output.finish_reason, ends(output)) == ("length", [STOPPED, CANCELLED])

    def test_nobody_is_awaited(self) -> None:
        """The request ends as soon as without children, and with it all of its tree."""
        engine = SurgicalEngine(dropping())
        engine.add()
        tokens = plan(r="a!b", r_child_0=LONG, r_child_1=LONG)
        engine.run_until(lambda: any(output.finished for output in engine.handed_out), tokens)
        assert not engine.statuses()
        engine.assert_empty()

    def test_a_result_that_nobody_has_asked_for_stands_nowhere(self) -> None:
        """The child has ended by itself, and keeps its finish reason and its result."""
        output = completed(SurgicalEngine(dropping()), r="a!bcdefgh", r_child_0="V")
        assert (output.text, ends(output)) == ("abcdefgh", [("stop", True, False)])
        assert output.children[0].result_token_ids == (ord("V"),)

    def test_by_default_they_are_joined(self) -> None:
        """Rule 5."""
        output = completed(SurgicalEngine(SYNC_HOOKS), r="a!b", r_child_0="VW")
        assert (output.text, ends(output)) == ("abVW", [STOPPED])

    def test_waits_that_a_sequence_asks_for_are_as_ever(self) -> None:
        """A sync, a name and a promise that blocks have their results; the rest goes at the end."""
        hooks = dropping(handlers={FORK: own("Named")})
        texts = {"r_child_0": "A" * 9, "r_child_1": "B" * 9, "r_child_2": LONG}
        output = completed(SurgicalEngine(hooks), r="!!1*b.c!d", **texts)
        assert (output.text, ends(output)) == ("1*BBBBBBBBBbAAAAAAAAAcd", [STOPPED, STOPPED, CANCELLED])
        blocking = completed(SurgicalEngine(dropping(HOOKS)), r="a!b", r_child_0="VW")
        assert (blocking.text, ends(blocking)) == ("aVWb", [STOPPED])

    def test_the_configured_number_of_results_is_of_other_waits(self) -> None:
        """At its end a sequence gets none, however many have one."""
        hooks = dropping(join_when=1)
        texts = {"r_child_0": LONG, "r_child_1": "B" * 5, "r_child_2": "C", "r_child_3": LONG}
        output = completed(SurgicalEngine(hooks), r="!!.b!!cdefg", **texts)
        assert output.text == "BBBBBbcdefg"
        assert ends(output) == [CANCELLED, STOPPED, ("stop", True, False), CANCELLED]


class TestTrees:
    def test_a_child_drops_its_own(self) -> None:
        """Its parent gets what it has sampled itself, at once."""
        texts = {"r": "!a.z", "r_child_0": "!V", "r_child_0_child_0": LONG}
        output = completed(SurgicalEngine(dropping(max_child_depth=2)), **texts)
        assert (output.text, ends(output), ends(output.children[0])) == ("aVz", [STOPPED], [CANCELLED])

    def test_what_is_below_goes_with_it(self) -> None:
        """At any depth, whether it waits or runs."""
        texts = {"r": "!abcdef", "r_child_0": "!.", "r_child_0_child_0": LONG}
        output = completed(SurgicalEngine(dropping(max_child_depth=2)), **texts)
        assert (output.text, ends(output), ends(output.children[0])) == ("abcdef", [CANCELLED], [CANCELLED])

    def test_one_that_was_never_admitted(self) -> None:
        """It has sampled nothing."""
        engine = SurgicalEngine(dropping(), max_num_seqs=2)
        output = completed(engine, r="!!abc", r_child_0=LONG, r_child_1=LONG)
        assert (output.text, ends(output)) == ("abc", [CANCELLED, CANCELLED])
        assert output.children[1].token_ids == ()

    def test_detached_ones_are_awaited_as_ever(self) -> None:
        """The others are cancelled before these have finished."""
        engine = SurgicalEngine(dropping(handlers={FORK: own("Apart")}))
        output = completed(engine, r="*!b", r_child_0="D" * 20, r_child_1=LONG)
        assert (output.finish_reason, ends(output)) == ("stop", [STOPPED, CANCELLED])
        assert len(output.children[0].token_ids) == 21 and len(output.children[1].token_ids) < 6

    def test_an_abort_is_an_abort(self) -> None:
        """Nobody below is told as cancelled."""
        engine = SurgicalEngine(dropping())
        engine.add()
        tokens = plan(r="!!" + "a" * 9, r_child_0=LONG, r_child_1=LONG)
        engine.run_until(lambda: "r_child_1" in engine.statuses(), tokens)
        engine.abort("r")
        assert engine.driver.trees.stats.num_cancelled == 0
        engine.run(tokens)
        engine.assert_empty()

    @pytest.mark.parametrize("named", [False, True])
    @pytest.mark.parametrize("most", range(4, 30, 3))
    def test_a_budget_is_an_end_like_others(self, most: int, named: bool) -> None:
        """What a wait has asked for is joined, and what nobody waits for is cancelled."""
        hooks = dropping(max_child_depth=2, max_tree_tokens=most, handlers={FORK: own("Named")} if named else {})
        texts = {"r": "!!1*bcdef" if named else "!!.!b", "r_child_0": "!!a", "r_child_1": "V" * 9, "r_child_2": LONG}
        below = {f"r_child_0_child_{each}": "B" * 5 for each in (0, 1)}
        output = completed(SurgicalEngine(hooks, max_num_seqs=4), **texts, **below)
        assert output.finish_reason in ("length", "stop")
        joined = {segment.child for segment in output.segments if segment.origin == "merged"}
        assert joined.isdisjoint(child.request_id for child in output.children if child.cancelled)

    def test_a_budget_cancels_what_nobody_waits_for(self) -> None:
        """The others are joined with what they have."""
        hooks = dropping(max_tree_tokens=9, handlers={FORK: own("Named")})
        output = completed(SurgicalEngine(hooks), r="!!1*b", r_child_0=LONG, r_child_1=LONG)
        first, second = output.children
        assert (first.cancelled, second.cancelled, second.finish_reason) == (True, False, "length")
        assert (output.text, output.finish_reason) == ("1*" + second.text, "length")


class TestAccounting:
    def test_usage_counts_what_they_have_sampled(self) -> None:
        """They have cost what any token costs; metrics count the children."""
        engine = SurgicalEngine(dropping())
        output = completed(engine, r="!!ab", r_child_0=LONG, r_child_1=LONG)
        assert output.tree_tokens.sampled_below == sum(len(child.token_ids) for child in output.children)
        stats = engine.driver.trees.stats
        assert (stats.num_spawned, stats.num_failed, stats.num_cancelled) == (2, 0, 2)

    def test_a_stream_of_children_tells_it(self) -> None:
        """The last delta of a child says how it has ended, before the request is told as finished."""
        engine = SurgicalEngine(dropping())
        engine.add(extra_args={"stream_children": True})
        tokens = plan(r="!!ab", r_child_0=LONG, r_child_1=LONG)
        engine.run_until(lambda: any(output.finished for output in engine.handed_out), tokens)
        output = finished(engine)
        for child in output.children:
            told = [delta for delta in engine.deltas if delta.request_id == child.request_id]
            assert told[-1].finish_reason == "cancelled"
            assert [token for delta in told for token in delta.token_ids] == list(child.token_ids)
        engine.assert_empty()

    def test_it_keeps_no_context(self) -> None:
        """A child that has dropped its own is as a finished one."""
        engine = SurgicalEngine(dropping(max_child_depth=2))
        engine.add()
        tokens = plan(r="!.z" + "z" * 9, r_child_0="!V", r_child_0_child_0=LONG)
        engine.run_until(lambda: engine.num_sampled("r") == 5, tokens)
        (root,) = engine.scheduler.trees.roots
        for branch in root.children[0].subtree():
            assert_released(branch)
        engine.run(tokens)
        engine.assert_empty()


class TestKV:
    @pytest.mark.parametrize("rule", ["sequential", "overlap"])
    def test_what_is_kept_of_it_is_given_back(self, rule: Any) -> None:
        """A child that has finished before keeps its KV for a join that does not come."""
        hooks = dropping(child_merge_strategy="kv_inject", position_rule=rule)
        output = completed(SurgicalEngine(hooks), r="!!abcdefg", r_child_0="VW", r_child_1=LONG)
        assert (output.text, ends(output)) == ("abcdefg", [("stop", True, False), CANCELLED])

    @pytest.mark.parametrize("num_blocks", [9, 10, 11, 12, 14, 20])
    @pytest.mark.parametrize("merge", ["kv_inject", "concatenate"])
    def test_under_pressure_nothing_is_left(self, merge: str, num_blocks: int) -> None:
        """Sequences are preempted and lose their KV meanwhile."""
        hooks = dropping(child_merge_strategy=merge, max_child_depth=2)
        engine = SurgicalEngine(hooks, num_blocks=num_blocks, max_model_len=32, max_num_seqs=4)
        texts = {"r": "!.b!!" + "z" * 9, "r_child_0": "!V", "r_child_0_child_0": LONG, "r_child_1": LONG}
        engine.add(prompt="p")
        engine.run(plan(**texts, r_child_2=LONG), max_steps=500)
        assert finished(engine).text == "Vb" + "z" * 9
        engine.assert_empty()
