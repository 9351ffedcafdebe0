# SPDX-License-Identifier: Apache-2.0
"""A sync may name the children that it waits for: their results alone are joined, and the others run on."""

import dataclasses
import logging
from typing import Any

import pytest

from mytests.harness.handlers import FORK, own
from mytests.harness.injecting import moves, prefilled
from mytests.harness.surgical import SYNC_HOOKS, SpecialKwargs, SurgicalEngine, completed, finished, plan
from sequence_hooks.results import Segment


def naming(handler: str = "Named", **fields: Any) -> SpecialKwargs:
    """Hooks that block at the sync token, and a token that waits for those children which the digits before it name."""
    return dataclasses.replace(SYNC_HOOKS, handlers={FORK: own(handler)}, **fields)


class TestWaits:
    def test_its_result_alone_is_joined(self) -> None:
        """The sibling that was spawned before it still runs, and is joined by a plain sync later."""
        output = completed(SurgicalEngine(naming()), r="!!1*b.z", r_child_0="A" * 9, r_child_1="VW")
        assert output.text == "1*VWb" + "A" * 9 + "z"
        assert [(each.origin, each.child) for each in output.segments] == [
            ("sampled", None),
            ("merged", "r_child_1"),
            ("sampled", None),
            ("merged", "r_child_0"),
            ("sampled", None),
        ]
        assert [join.num_merged for join in output.joins] == [2, 9]

    def test_it_waits_until_that_child_has_finished(self) -> None:
        """Whichever of its siblings finish before."""
        engine = SurgicalEngine(naming())
        engine.add()
        tokens = plan(r="!!0*b.z", r_child_0="A" * 9, r_child_1="VW")
        engine.run_until(lambda: "r_child_1" not in engine.statuses() and engine.num_sampled("r") == 4, tokens)
        assert engine.statuses()["r"] == "BLOCKED"
        engine.run(tokens)
        assert finished(engine).text == "0*" + "A" * 9 + "bVWz"
        engine.assert_empty()

    def test_several_are_joined_in_spawn_order(self) -> None:
        """However they are named, each once; the others stay unjoined up to the end."""
        output = completed(SurgicalEngine(naming()), r="!!!202*b", r_child_0="AB", r_child_1="V" * 9, r_child_2="Z")
        assert output.text == "202*AB\nZb" + "V" * 9

    def test_by_turns(self) -> None:
        """Each by a token of its own, in another order than they were spawned."""
        output = completed(SurgicalEngine(naming()), r="!!!2*1*0*.z", r_child_0="A", r_child_1="B", r_child_2="C")
        assert (output.text, len(output.joins)) == ("2*C1*B0*Az", 4)

    def test_children_spawned_meanwhile_have_numbers_of_their_own(self) -> None:
        """A number counts all children of its parent, and never changes."""
        output = completed(SurgicalEngine(naming()), r="!0*!b1*!2*.z", r_child_0="A", r_child_1="B", r_child_2="C")
        assert output.text == "0*Ab1*B2*Cz"

    def test_no_name_waits_for_nobody(self) -> None:
        """It goes on at once, with nothing merged."""
        output = completed(SurgicalEngine(naming()), r="!a*b.z", r_child_0="A" * 9)
        assert (output.text, [join.num_merged for join in output.joins]) == ("a*b" + "A" * 9 + "z", [0, 9])

    def test_a_child_that_is_aborted_ends_the_wait(self) -> None:
        """It merges as nothing, and its sibling is joined later."""
        engine = SurgicalEngine(naming())
        engine.add()
        tokens = plan(r="!!0*b.z", r_child_0="A" * 30, r_child_1="V" * 9)
        engine.run_until(lambda: engine.statuses().get("r") == "BLOCKED", tokens)
        engine.abort("r_child_0")
        engine.run(tokens)
        output = finished(engine)
        assert (output.text, [child.failed for child in output.children]) == ("0*b" + "V" * 9 + "z", [True, False])
        engine.assert_empty()

    def test_a_child_names_its_own(self) -> None:
        """Numbers are those of the sequence that waits."""
        hooks = naming(max_child_depth=2)
        texts = {"r": "!!1*z", "r_child_0": "A", "r_child_1": "!!1*y.x", "r_child_1_child_0": "C" * 9}
        output = completed(SurgicalEngine(hooks), **texts, r_child_1_child_1="D")
        assert output.text == "1*1*Dy" + "C" * 9 + "xzA"

    def test_where_a_name_fills_the_model_the_others_are_awaited(self) -> None:
        """It ends with the length, and what its siblings say is cut."""
        engine = SurgicalEngine(naming(), max_model_len=16)
        output = completed(engine, r="!!1*b.z", r_child_0="A" * 7, r_child_1="VWXYZ" * 3)
        assert (output.finish_reason, len(output.token_ids)) == ("length", 10)
        assert [(join.num_merged, join.num_cut > 0) for join in output.joins] == [(6, True), (0, True)]


class TestRefusals:
    @pytest.mark.parametrize(
        ("texts", "expected"),
        [
            ({"r": "!3*b.z", "r_child_0": "A"}, "3*bAz"),
            ({"r": "!0*0*.z", "r_child_0": "A"}, "0*A0*z"),
            ({"r": "!01*b.z", "r_child_0": "A"}, "01*bAz"),
            ({"r": "!.0*z", "r_child_0": "A"}, "A0*z"),
        ],
        ids=["unknown", "joined", "one-of-two", "joined-by-a-sync"],
    )
    def test_what_is_not_unjoined_cannot_be_named(
        self, texts: dict[str, str], expected: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The token is an ordinary one; the caller is told, and the operator, once."""
        engine = SurgicalEngine(naming())
        with caplog.at_level(logging.INFO, "vllm"):
            output = completed(engine, **texts)
        assert (output.text, output.limits_met) == (expected, ("wait_for",))
        assert engine.driver.trees.stats.num_refused == {"wait_for": 1}
        (line,) = [record for record in caplog.records if "names a child" in record.message]
        assert line.levelno == logging.INFO and f"token {FORK}" in line.message

    def test_a_detached_child_cannot_be_named(self) -> None:
        """Nobody waits for it."""
        output = completed(SurgicalEngine(naming(block_on="never")), r="a!0*z", r_child_0="A")
        assert (output.text, output.limits_met) == ("aA0*z", ("wait_for",))


class TestCallers:
    def test_a_caller_is_awaited_beside_them(self) -> None:
        """In either order; what it gives comes after their results, and their siblings run on."""
        engine = SurgicalEngine(naming("NamedByCaller"))
        engine.add()
        tokens = plan(r="!!1*b.z", r_child_0="A" * 20, r_child_1="VW")
        engine.run_until(lambda: bool(engine.awaiting()), tokens)
        (waiting,) = engine.waits()
        assert waiting.children == ("r_child_1",)
        engine.resume("r", "tool")
        engine.run(tokens)
        assert finished(engine).text == "1*VWtoolb" + "A" * 20 + "z"
        engine.assert_empty()


class TestKV:
    @pytest.mark.parametrize("rule", ["sequential", "overlap"])
    def test_what_is_named_is_injected_while_a_sibling_runs(self, rule: Any) -> None:
        """And what is kept of those that wait to be joined stays until they are."""
        engine = SurgicalEngine(naming(child_merge_strategy="kv_inject", position_rule=rule))
        texts = {"r": "!!!2*b.z", "r_child_0": "ABCDEF" * 3, "r_child_1": "IJKLM", "r_child_2": "VWXYZ"}
        output = completed(engine, **texts)
        assert output.text == "2*VWXYZb" + "ABCDEF" * 3 + "\nIJKLMz"
        # Of the last child all but its last token is injected, and of the others but that of the last of them.
        assert (prefilled(engine), len(moves(engine))) == ([2, 3], 4 + 18 + 4)

    def test_a_finished_sibling_keeps_its_kv(self) -> None:
        """It is injected at its own join."""
        engine = SurgicalEngine(naming(child_merge_strategy="kv_inject"))
        output = completed(engine, r="!!1*bcdefg0*z", r_child_0="ABCD", r_child_1="VWXYZ" * 2)
        assert output.text == "1*" + "VWXYZ" * 2 + "bcdefg0*ABCDz"
        assert (prefilled(engine), len(moves(engine))) == ([2, 2], 9 + 3)

    def test_what_is_joined_is_given_back_while_a_sibling_runs(self) -> None:
        """Nothing is held but by those that still run."""
        engine = SurgicalEngine(naming(child_merge_strategy="kv_inject"))
        num_free = engine.num_free_blocks()
        engine.add()
        tokens = plan(r="!!1*bcd.z", r_child_0="A" * 40, r_child_1="VWXYZ" * 6)
        engine.run_until(lambda: engine.num_sampled("r") == 7, tokens)
        running = {*engine.blocks_of("r"), *engine.blocks_of("r_child_0")}
        assert num_free - engine.num_free_blocks() == len(running)
        engine.run(tokens)
        assert len(finished(engine).children) == 2
        engine.assert_empty()

    @pytest.mark.parametrize("others", [{"r_child_0", "r_child_1"}, {"r_child_1"}], ids=["before", "afterwards"])
    def test_a_parent_that_loses_its_kv_prefills_what_is_named(self, others: set[str]) -> None:
        """What is kept of the sibling is injected at its own join, whenever it has ended."""
        engine = SurgicalEngine(naming(child_merge_strategy="kv_inject"))
        engine.add()
        tokens = plan(r="!!1*bcdefg0*z", r_child_0="ABCD", r_child_1="VWXYZ" * 2)
        engine.run_until(
            lambda: engine.queues()["blocked"] == ["r"] and engine.statuses().keys() == {"r"} | others, tokens
        )
        engine.evict("r")
        engine.run(tokens)
        assert finished(engine).text == "1*" + "VWXYZ" * 2 + "bcdefg0*ABCDz"
        assert (prefilled(engine), len(moves(engine))) == ([6 + 4 + 10, 2], 3)
        engine.assert_empty()

    @pytest.mark.parametrize("num_blocks", [9, 10, 11, 12, 14, 20])
    @pytest.mark.parametrize("merge", ["kv_inject", "concatenate"])
    def test_under_pressure_it_is_the_same(self, merge: str, num_blocks: int) -> None:
        """Sequences are preempted and lose their KV meanwhile; tokens are the same, and nothing is left."""
        hooks = naming(child_merge_strategy=merge)
        engine = SurgicalEngine(hooks, num_blocks=num_blocks, max_model_len=32, max_num_seqs=4)
        texts = {"r": "!!!1*bcd2*e.z", "r_child_0": "A" * 8, "r_child_1": "VWX", "r_child_2": "CDEF"}
        engine.add(prompt="p")
        engine.run(plan(**texts), max_steps=500)
        assert finished(engine).text == "1*VWXbcd2*CDEFe" + "A" * 8 + "z"
        engine.assert_empty()


def test_segments_cover_the_output() -> None:
    """Each token is in one."""
    output = completed(SurgicalEngine(naming()), r="!!1*.z", r_child_0="A", r_child_1="B")
    assert output.segments[1] == Segment(4, 5, "merged", "r_child_1")
    assert output.segments[-1].end == len(output.token_ids)
