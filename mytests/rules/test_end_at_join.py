# SPDX-License-Identifier: Apache-2.0
"""With ``end_at_join`` in its extra arguments a request ends where it first gets its children's results."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.handlers import FORK, own
from mytests.harness.outcomes import Case, rules
from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, begun, completed, finished, plan

ENDING: dict[str, Any] = {"extra_args": {"end_at_join": 1}}
DEEP = dataclasses.replace(HOOKS, max_child_depth=2)
AT_ONCE: dict[str, Any] = {"finish_reason": "stop", "stop_reason": None, "merged": [2], "prefilled": [0]}


@pytest.mark.rule(20)
@rules(
    {
        "a sync": Case(SYNC_HOOKS, "a!.b", "VW", params=ENDING, text="aVW", **AT_ONCE),
        "a promise that blocks": Case(HOOKS, "a!b", "VW", params=ENDING, text="aVW", **AT_ONCE),
        "min_tokens": Case(
            SYNC_HOOKS, "a!.bcdefghij", "VW", params={"min_tokens": 9, **ENDING}, text="aVW", finish_reason="stop"
        ),
        "a sync that waits for nobody": Case(SYNC_HOOKS, "a.b!.c", "V", params=ENDING, text="abV"),
        "children, which go on": Case(DEEP, "!z", ("a!b", "V"), params=ENDING, text="aVb", of_children=["aVb"]),
        "children that it has not waited for": Case(
            dataclasses.replace(SYNC_HOOKS, handlers={FORK: own("Named")}), "!!0*b", "A", "B" * 9,
            params=ENDING, text="0*A" + "B" * 9, finish_reason="stop",
        ),
        "no room": Case(
            SYNC_HOOKS, "a!.b", "V" * 9, params=ENDING, sizes={"max_model_len": 16}, finish_reason="length", cut=[1]
        ),
        "a switch that is off": Case(SYNC_HOOKS, "a!.b", "VW", params={"extra_args": {"end_at_join": 0}}, text="aVWb"),
        "a switch that is False": Case(
            SYNC_HOOKS, "a!.b", "VW", params={"extra_args": {"end_at_join": False}}, text="aVWb"
        ),
    }
)  # fmt: skip
def test_it_ends_at_its_first_join(case: Case) -> None:
    """As if it had sampled an EOS there, but without one; others go on, and so do its children after theirs."""
    case.check()


@pytest.mark.rule(20)
def test_nothing_more_is_computed() -> None:
    """Neither what was merged nor an EOS; without it, both are."""
    ending, other = (
        completed(SurgicalEngine(SYNC_HOOKS), params=params, r="a!.", r_child_0="VWXYZ") for params in (ENDING, {})
    )
    assert other.text == ending.text
    assert [each.joins[0].num_prefill for each in (ending, other)] == [0, 5 + 1]
    assert len(other.token_ids) - len(ending.token_ids) == 1


@pytest.mark.rule(20)
def test_what_is_no_switch_is_refused() -> None:
    """By its name."""
    with pytest.raises(ValueError, match="end_at_join is 2; use True or False"):
        completed(SurgicalEngine(SYNC_HOOKS), params={"extra_args": {"end_at_join": 2}}, r="a")


@pytest.mark.rule(20)
def test_a_callers_turn_comes_first() -> None:
    """What it is resumed with is the end of the answer."""
    engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, sync_resume="manual"))
    with begun(engine, plan(r="a!.b", r_child_0="VW"), lambda: bool(engine.awaiting()), **ENDING):
        engine.resume("r", "Z")
    assert finished(engine).text == "aVWZ"
