# SPDX-License-Identifier: Apache-2.0
"""A sync may name the children that it waits for: their results alone are joined, and the others run on."""

import dataclasses
import logging
from typing import Any

import pytest

from mytests.harness.handlers import FORK, own
from mytests.harness.injecting import moves, prefilled
from mytests.harness.outcomes import Case, ends, rules
from mytests.harness.surgical import SYNC_HOOKS, SpecialKwargs, SurgicalEngine, begun, completed, finished, plan


def naming(handler: str = "Named", **fields: Any) -> SpecialKwargs:
    """Hooks that block at the sync token, and a token that waits for those children which the digits before it name."""
    return dataclasses.replace(SYNC_HOOKS, handlers={FORK: own(handler)}, **fields)


@pytest.mark.rule(17)
class TestWaits:
    @rules(
        {
            "it alone, while one spawned before it runs on": Case(
                naming(), "!!1*b.z", "AAAAAAAAA", "VW",
                text="1*VWbAAAAAAAAAz", merged=[2, 9], of_segments=[None, "r_child_1", None, "r_child_0", None],
            ),
            "several in spawn order, each once": Case(
                naming(), "!!!202*b", "AB", "VVVVVVVVV", "Z", text="202*AB\nZbVVVVVVVVV"
            ),
            "by turns, in another order": Case(
                naming(), "!!!2*1*0*.z", "A", "B", "C", text="2*C1*B0*Az", merged=[1, 1, 1, 0]
            ),
            "by numbers that never change": Case(naming(), "!0*!b1*!2*.z", "A", "B", "C", text="0*Ab1*B2*Cz"),
            "nobody if it names nobody": Case(naming(), "!a*b.z", "AAAAAAAAA", text="a*bAAAAAAAAAz", merged=[0, 9]),
            "a child's own": Case(
                naming(max_child_depth=2), "!!1*z", "A", ("!!1*y.x", "CCCCCCCCC", "D"), text="1*1*DyCCCCCCCCCxzA"
            ),
            "the others too where it fills the model": Case(
                naming(), "!!1*b.z", "AAAAAAA", "VWXYZ" * 3,
                sizes={"max_model_len": 16}, finish_reason="length", num_tokens=10, merged=[6, 0], cut=[2, 7],
            ),
        }
    )  # fmt: skip
    def test_the_named_children_are_joined(self, case: Case) -> None:
        """Numbers are those of the children of the sequence that waits; each token of its output is in a segment."""
        output = case.check()
        assert output.segments[-1].end == len(output.token_ids)

    def test_it_waits_until_that_child_has_finished(self) -> None:
        """Whichever of its siblings finish before."""
        engine = SurgicalEngine(naming())
        script = plan(r="!!0*b.z", r_child_0="A" * 9, r_child_1="VW")
        with begun(engine, script, lambda: "r_child_1" not in engine.statuses() and engine.num_sampled("r") == 4):
            assert engine.statuses()["r"] == "BLOCKED"
        assert finished(engine).text == "0*" + "A" * 9 + "bVWz"

    def test_a_child_that_is_aborted_ends_the_wait(self) -> None:
        """It merges as nothing, and its sibling is joined later."""
        engine = SurgicalEngine(naming())
        script = plan(r="!!0*b.z", r_child_0="A" * 30, r_child_1="V" * 9)
        with begun(engine, script, lambda: engine.statuses().get("r") == "BLOCKED"):
            engine.abort("r_child_0")
        assert (finished(engine).text, ends(finished(engine))) == ("0*b" + "V" * 9 + "z", "failed stop")


class TestRefusals:
    @pytest.mark.rule(17)
    @rules(
        {
            "unknown": Case(naming(), "!3*b.z", "A", text="3*bAz"),
            "joined": Case(naming(), "!0*0*.z", "A", text="0*A0*z"),
            "one of two": Case(naming(), "!01*b.z", "A", text="01*bAz"),
            "joined by a sync": Case(naming(), "!.0*z", "A", text="A0*z"),
            "detached": Case(naming(block_on="never"), "a!0*z", "A", text="aA0*z"),
        }
    )
    def test_what_is_not_unjoined_cannot_be_named(self, case: Case, caplog: pytest.LogCaptureFixture) -> None:
        """The token is an ordinary one; the caller is told, and the operator, once."""
        with caplog.at_level(logging.INFO, "vllm"):
            assert case.check().limits_met == ("wait_for",)
        (line,) = [record for record in caplog.records if "names a child" in record.message]
        assert line.levelno == logging.INFO and f"token {FORK}" in line.message


class TestCallers:
    @pytest.mark.rule(17)
    def test_a_caller_is_awaited_beside_them(self) -> None:
        """In either order; what it gives comes after their results, and their siblings run on."""
        engine = SurgicalEngine(naming("NamedByCaller"))
        with begun(engine, plan(r="!!1*b.z", r_child_0="A" * 20, r_child_1="VW"), lambda: bool(engine.awaiting())):
            (waiting,) = engine.waits()
            assert waiting.children == ("r_child_1",)
            engine.resume("r", "tool")
        assert finished(engine).text == "1*VWtoolb" + "A" * 20 + "z"


@pytest.mark.rule(17)
class TestKV:
    @pytest.mark.parametrize("rule", ["sequential", "overlap"])
    def test_what_is_named_is_injected_while_a_sibling_runs(self, rule: Any) -> None:
        """And what is kept of those that wait to be joined stays until they are."""
        engine = SurgicalEngine(naming(child_merge_strategy="kv_inject", position_rule=rule))
        texts = {"r": "!!!2*b.z", "r_child_0": "ABCDEF" * 3, "r_child_1": "IJKLM", "r_child_2": "VWXYZ"}
        assert completed(engine, **texts).text == "2*VWXYZb" + "ABCDEF" * 3 + "\nIJKLMz"
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
        script = plan(r="!!1*bcd.z", r_child_0="A" * 40, r_child_1="VWXYZ" * 6)
        with begun(engine, script, lambda: engine.num_sampled("r") == 7):
            assert num_free - engine.num_free_blocks() == len({*engine.blocks_of("r"), *engine.blocks_of("r_child_0")})
        assert len(finished(engine).children) == 2

    @pytest.mark.parametrize("others", [{"r_child_0", "r_child_1"}, {"r_child_1"}], ids=["before", "afterwards"])
    def test_a_parent_that_loses_its_kv_prefills_what_is_named(self, others: set[str]) -> None:
        """What is kept of the sibling is injected at its own join, whenever it has ended."""
        engine = SurgicalEngine(naming(child_merge_strategy="kv_inject"))
        with begun(
            engine,
            plan(r="!!1*bcdefg0*z", r_child_0="ABCD", r_child_1="VWXYZ" * 2),
            lambda: engine.queues()["blocked"] == ["r"] and engine.statuses().keys() == {"r"} | others,
        ):
            engine.evict("r")
        assert finished(engine).text == "1*" + "VWXYZ" * 2 + "bcdefg0*ABCDz"
        assert (prefilled(engine), len(moves(engine))) == ([6 + 4 + 10, 2], 3)
