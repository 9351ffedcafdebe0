# SPDX-License-Identifier: Apache-2.0
"""The fuzzer finds trees with joins, and would find a fault in them."""

import sys
from typing import Any

import pytest
from hypothesis import strategies as st

import mytests.fuzz as fuzzer
from mytests.faults import fault_named
from mytests.faults.planting import planted
from mytests.fuzz import Tally
from mytests.fuzz_draw import histories
from mytests.fuzz_tally import MIN_HISTORIES, MIN_JOINS
from mytests.fuzz_trials import first_failure, short_run
from mytests.tiers import full, sizes

pytestmark = pytest.mark.model


@pytest.mark.floats
@sizes(15, 50)
def test_a_short_run_finds_no_fault_in_trees_with_joins(size: int) -> None:
    """The histories are the same on every run, and go on until each kind was among them."""
    tally = short_run(4, size)
    assert tally.unseen == []
    assert tally.sequences > 2 * tally.histories


ALL = histories(())
FAULTS = [
    pytest.param("merged-backwards", ALL, "should be", id="merged-backwards"),
    full("kv-not-copied", ALL, "the model has", id="kv-not-copied"),
    pytest.param("blocks-leaked", ALL, "blocks are left", id="blocks-leaked"),
    full("childs-adapter", ALL, "the model has", id="childs-adapter"),
    full("merged-tokens-penalized", histories(("penalties",)), "", id="merged-tokens-penalized"),
    full("shared-grammar", histories(("grammar",)), "", id="shared-grammar"),
    full("stop-strings-across-a-join", histories(("stop",)), "", id="stop-strings-across-a-join"),
    full("seeds-at-random", histories(("sampled",)), "and then", id="seeds-at-random"),
]


@pytest.mark.parametrize(("name", "among", "message"), FAULTS)
def test_a_planted_fault_is_found(name: str, among: st.SearchStrategy[Any], message: str) -> None:
    """A planted fault is reported as a history that fails again."""
    with planted(fault_named(name)):
        failure = first_failure(6, 1_000, among)
        cause = failure.__cause__
        assert cause is not None
        assert message in str(cause)
        # Shared grammars keep their state from history to history, so this one fault may fail only once.
        if name != "shared-grammar":
            with pytest.raises(type(cause)):
                exec(failure.script)


class TestTheCommand:
    """`make fuzz` reports how much it tried."""

    @pytest.mark.parametrize(
        ("tally", "complaint"),
        [
            (Tally(histories=MIN_HISTORIES - 1, joins=MIN_JOINS), "19 histories are too few"),
            (Tally(histories=MIN_HISTORIES, joins=MIN_JOINS - 1), "19 joins are too few"),
            (Tally(histories=MIN_HISTORIES, joins=MIN_JOINS), None),
        ],
    )
    def test_too_little_is_a_failure(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tally: Tally, complaint: str | None
    ) -> None:
        """After too few histories or joins, it means nothing that no fault was found."""
        monkeypatch.setattr(fuzzer, "replay", lambda history: Tally())
        monkeypatch.setattr(fuzzer, "fuzz", lambda seconds, seed: tally)
        monkeypatch.setattr(sys, "argv", ["fuzz", "--seconds", "30"])
        assert fuzzer.main() == (complaint is not None)
        told = capsys.readouterr()
        assert str(tally) in told.out
        assert (complaint or "") in told.err
        assert bool(told.err) == (complaint is not None)
