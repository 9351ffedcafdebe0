# SPDX-License-Identifier: Apache-2.0
"""With ``end_at_join`` in its extra arguments a request ends where it first gets its children's results."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.handlers import FORK, own
from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SpecialKwargs, SurgicalEngine, completed, finished, plan

ENDING: dict[str, Any] = {"extra_args": {"end_at_join": 1}}
DEEP = dataclasses.replace(HOOKS, max_child_depth=2)


def ended(hooks: SpecialKwargs = SYNC_HOOKS, params: dict[str, Any] | None = None, **texts: str) -> Any:
    """The output of a request that ends at its join; its engine is empty then, and every block is free."""
    return completed(SurgicalEngine(hooks), params=ENDING | (params or {}), **texts)


class TestEnd:
    @pytest.mark.parametrize("hooks", [SYNC_HOOKS, HOOKS], ids=["sync", "promise"])
    def test_it_is_at_the_first_join(self, hooks: SpecialKwargs) -> None:
        """As if it had sampled an EOS there, but without one."""
        output = ended(hooks, r="a!.b" if hooks is SYNC_HOOKS else "a!b", r_child_0="VW")
        assert (output.text, output.finish_reason, output.stop_reason) == ("aVW", "stop", None)
        assert [(join.num_merged, join.num_prefill) for join in output.joins] == [(2, 0)]

    def test_nothing_more_is_computed(self) -> None:
        """Neither what was merged nor an EOS; without it, both are."""
        ending, other = (
            completed(SurgicalEngine(SYNC_HOOKS), params=params, r="a!.", r_child_0="VWXYZ") for params in (ENDING, {})
        )
        assert other.text == ending.text
        assert [each.joins[0].num_prefill for each in (ending, other)] == [0, 5 + 1]
        assert len(other.token_ids) - len(ending.token_ids) == 1

    def test_min_tokens_ask_for_no_more(self) -> None:
        """A join ends it, and not a token that could be masked."""
        assert ended(params={"min_tokens": 9}, r="a!.bcdefghij", r_child_0="VW").text == "aVW"

    def test_a_join_of_no_child_is_none(self) -> None:
        """A sync that waits for nobody, and a text that is put right, let it go on."""
        assert ended(r="a.b!.c", r_child_0="V").text == "abV"

    @pytest.mark.parametrize("off", [{"end_at_join": 0}, {"end_at_join": False}, {}])
    def test_others_go_on(self, off: dict[str, Any]) -> None:
        """It is each request's own choice."""
        assert ended(params={"extra_args": off}, r="a!.b", r_child_0="VW").text == "aVWb"

    def test_what_is_no_switch_is_refused(self) -> None:
        """By its name."""
        with pytest.raises(ValueError, match="end_at_join is 2; use True or False"):
            ended(params={"extra_args": {"end_at_join": 2}}, r="a")


class TestTrees:
    def test_children_go_on_after_theirs(self) -> None:
        """It is the request's own sequence that ends."""
        output = ended(DEEP, r="!z", r_child_0="a!b", r_child_0_child_0="V")
        assert (output.text, output.children[0].text) == ("aVb", "aVb")

    def test_others_that_it_has_not_waited_for_are_joined(self) -> None:
        """As at any end."""
        hooks = dataclasses.replace(SYNC_HOOKS, handlers={FORK: own("Named")})
        output = ended(hooks, r="!!0*b", r_child_0="A", r_child_1="B" * 9)
        assert (output.text, output.finish_reason) == ("0*A" + "B" * 9, "stop")

    def test_a_callers_turn_comes_first(self) -> None:
        """What it is resumed with is the end of the answer."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, sync_resume="manual"))
        engine.add(**ENDING)
        tokens = plan(r="a!.b", r_child_0="VW")
        engine.run_until(lambda: bool(engine.awaiting()), tokens)
        engine.resume("r", "Z")
        engine.run(tokens)
        assert finished(engine).text == "aVWZ"
        engine.assert_empty()

    def test_at_the_models_length_it_has_that_reason(self) -> None:
        """What does not fit is cut, and the caller is told."""
        engine = SurgicalEngine(SYNC_HOOKS, max_model_len=16)
        output = completed(engine, params=ENDING, r="a!.b", r_child_0="V" * 9)
        assert (output.finish_reason, output.joins[0].num_cut > 0) == ("length", True)
