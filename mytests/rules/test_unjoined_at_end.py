# SPDX-License-Identifier: Apache-2.0
"""With ``unjoined_at_end="cancel"`` a sequence ends without its unjoined children; see also `test_cancelled.py`."""

from functools import partial

import pytest

from mytests.harness.handlers import FORK, hooks_with, own
from mytests.harness.outcomes import LONG, Case, ends, rules
from mytests.harness.surgical import SurgicalEngine, completed, plan, tree

dropping = partial(hooks_with, unjoined_at_end="cancel")
"""Hooks with which nobody is awaited at an end."""

NAMED = {FORK: own("Named")}
ALONE = dropping(handlers=NAMED, child_context="none", child_prefix_token_ids=(4,))
INJECTS = dropping(child_merge_strategy="kv_inject")
OVERLAPS = dropping(child_merge_strategy="kv_inject", position_rule="overlap")


@pytest.mark.rule(19)
@rules(
    {
        "EOS": Case(dropping(), "a!b", LONG, text="ab", finish_reason="stop"),
        "stop token": Case(dropping(), "a!bcd", LONG, params={"stop_token_ids": [ord("c")]}, finish_reason="stop"),
        "stop string": Case(dropping(), "a!bcd", LONG, params={"stop": ["c"]}, text="ab", finish_reason="stop"),
        "max_tokens": Case(dropping(), "a!bcd", LONG, params={"max_tokens": 3}, text="ab", finish_reason="length"),
    }
)
def test_what_is_unjoined_is_cancelled(case: Case) -> None:
    """Whatever has ended the sequence: it finishes with that reason, and nothing is appended."""
    output = case.check()
    (child,) = output.children
    assert (output.text.rstrip("c"), output.joins, ends(output)) == ("ab", (), "cancelled")
    assert len(child.token_ids) < 6 and child.result_token_ids == ()


@pytest.mark.rule(19)
def test_nobody_is_awaited() -> None:
    """The request ends as soon as without children, and with it all of its tree."""
    engine = SurgicalEngine(dropping())
    engine.add()
    engine.run_until(lambda: any(output.finished for output in engine.handed_out), plan(**tree("a!b", LONG, LONG)))
    assert not engine.statuses()
    engine.assert_empty()


@pytest.mark.rule(19)
@rules(
    {
        "by default all are joined": Case(hooks_with(), "a!b", "VW", text="abVW", ends="stop"),
        "nobody has asked for it": Case(dropping(), "a!bcdefgh", "V", text="abcdefgh", ends="late"),
        "by a sync and a name": Case(
            dropping(handlers=NAMED), "!!1*b.c!d", "AAAAAAAAA", "BBBBBBBBB", LONG,
            text="1*BBBBBBBBBbAAAAAAAAAcd", ends="stop stop cancelled",
        ),
        "by a promise": Case(dropping(block_on="promise"), "a!b", "VW", text="aVWb", ends="stop"),
        "as many as configured, and none at the end": Case(
            dropping(join_when=1), "!!.b!!cdefg", LONG, "BBBBB", "C", LONG,
            text="BBBBBbcdefg", ends="cancelled stop late cancelled",
        ),
        "the model's length": Case(
            ALONE, "!" + "a" * 40, LONG, sizes={"max_model_len": 16}, finish_reason="length", ends="cancelled",
        ),
        "the model's length, by a join by name": Case(
            ALONE, "!!0*b", "A" * 16, "B" * 19,
            sizes={"max_model_len": 24}, finish_reason="length", ends="stop cancelled",
        ),
        "KV is kept for no join": Case(INJECTS, "!!abcdefg", "VW", LONG, text="abcdefg", ends="late cancelled"),
        "KV is kept, to overlap": Case(OVERLAPS, "!!abcdefg", "VW", LONG, text="abcdefg", ends="late cancelled"),
    }
)  # fmt: skip
def test_what_a_sequence_asks_for_it_gets_as_ever(case: Case) -> None:
    """A child that has ended by itself keeps its finish reason and its result."""
    output = case.check()
    assert all(child.result_token_ids for child in output.children if child.finish_reason == "stop")


@pytest.mark.rule(19)
def test_detached_ones_are_awaited_as_ever() -> None:
    """The others are cancelled before these have finished."""
    output = completed(SurgicalEngine(dropping(handlers={FORK: own("Apart")})), **tree("*!b", "D" * 20, LONG))
    assert (output.finish_reason, ends(output)) == ("stop", "stop cancelled")
    assert len(output.children[0].token_ids) == 21 and len(output.children[1].token_ids) < 6


@pytest.mark.rule(19)
def test_a_budget_cancels_what_nobody_waits_for() -> None:
    """The others are joined with what they have."""
    output = completed(SurgicalEngine(dropping(max_tree_tokens=9, handlers=NAMED)), **tree("!!1*b", LONG, LONG))
    first, second = output.children
    assert (first.cancelled, second.cancelled, second.finish_reason) == (True, False, "length")
    assert (output.text, output.finish_reason) == ("1*" + second.text, "length")
