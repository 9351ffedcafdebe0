# SPDX-License-Identifier: Apache-2.0
"""The fuzzer finds joins and injected KV to be right on the engine that is installed, and would find a fault."""

from typing import Any

import pytest
from hypothesis import strategies as st

import mytests.fuzz.fuzzing as fuzzer
from mytests.fuzz.draw import histories, injected
from mytests.fuzz.fuzzing import SECONDS, Failure, History, Tally, fuzz
from mytests.fuzz.planting import planted
from mytests.harness.dialect import DIALECT
from mytests.harness.installed import IS_V1
from mytests.harness.tiers import full, names, sizes

pytestmark = pytest.mark.model


# A seed draws other histories on each engine.
SHORT_SEED, PLANTED_SEED, INJECTED_SEED, SIZES = (2, 4, 4, (8, 30)) if IS_V1 else (4, 6, 5, (8, 50))


@pytest.mark.floats
@sizes(*SIZES)
def test_a_short_run_finds_no_fault_in_trees_with_joins(size: int) -> None:
    """The histories are the same on every run of a processor, and go on until each kind was among them."""

    def is_enough(seen: Tally) -> bool:
        return seen.histories >= size and not seen.unseen

    tally = fuzz(SECONDS, SHORT_SEED, 20 * size, is_enough=is_enough)
    assert tally.unseen == []
    assert tally.sequences > 2 * tally.histories


@pytest.mark.floats
@pytest.mark.parametrize("architecture", names(DIALECT.architectures[1:], []))
def test_trees_of_each_architecture(architecture: str) -> None:
    """Such as have windows, attention sinks or experts: forks, joins, and KV that is given up."""
    assert _has_most(fuzz(SECONDS, 5, among=histories(architectures=(architecture,)), is_enough=_has_most))


def _has_most(seen: Tally) -> bool:
    has_pressure = seen.joins_after_loss > 2 and seen.preemptions > 2
    return has_pressure and seen.joins > 30 and seen.forks_by_text > 0 and seen.of_other_models > 20


def _has_plain_joins(history: History) -> bool:
    """Whether what children sampled becomes part of their parent's context."""
    setup = history.setup
    return setup.block_on != "never" and setup.child_context == "parent" and setup.merges


ALL, STOPPED = histories(()), histories(("stop",))
AMPLE = ALL.filter(lambda history: history.setup.spare_blocks > 20)
"""Where KV is scarce, what leaks soon keeps all from running."""

HYBRIDS = histories((), tuple({"granitemoehybrid", "lfm2"} & {*DIALECT.architectures}) or DIALECT.architectures)
FAULTS = [
    pytest.param("merged-backwards", ALL, "should be", id="merged-backwards"),
    full("a-budget-is-exceeded", histories(("limits",)), "has a tree of", id="a-budget-is-exceeded"),
    full("childs-adapter", ALL, "the model has", id="childs-adapter"),
    full("shared-grammar", histories(("grammar",)), "", id="shared-grammar"),
    full("seeds-at-random", histories(("sampled",)), "and then", id="seeds-at-random"),
]
ON_THE_FORK = [
    full("kv-not-copied", ALL, "the model has", id="kv-not-copied"),
    pytest.param("blocks-leaked", AMPLE, "blocks are left", id="blocks-leaked"),
    full("merged-tokens-penalized", histories(("penalties",)), "", id="merged-tokens-penalized"),
    full("stop-strings-across-a-join", STOPPED, "", id="stop-strings-across-a-join"),
]
ON_THE_PLUGIN = [
    # Each worker tries it when it starts.
    full("kv-not-copied", ALL, "copies only a part of a block", id="kv-not-copied"),
    full("blocks-leaked", ALL, "KV cache", id="blocks-leaked"),
    full("stop-strings-across-a-join", STOPPED.filter(_has_plain_joins), "", id="stop-strings-across-a-join"),
    full("limits-across-a-join", ALL, "r", id="limits-across-a-join"),
    full("penalties-across-a-join", histories(("penalties",)), "", id="penalties-across-a-join"),
    full("deltas-lost", histories(("stream_children",)), "deltas", id="deltas-lost"),
    full("a-block-is-copied-in-part", HYBRIDS, "the model has", id="a-block-is-copied-in-part"),
]
FAULTS += ON_THE_PLUGIN if IS_V1 else ON_THE_FORK

FAILS_ONCE = {"shared-grammar", "seeds-at-random"}
"""A shared grammar keeps its state from history to history, and seeds drawn at random may draw the same tokens."""


@pytest.mark.parametrize(("name", "among", "message"), FAULTS)
def test_a_planted_fault_is_found(name: str, among: st.SearchStrategy[Any], message: str) -> None:
    """A planted fault is reported as a history that fails again."""
    with planted(name):
        with pytest.raises(Failure) as told:
            fuzz(SECONDS, PLANTED_SEED, 1_000, shrinks=False, among=among)
        cause = told.value.__cause__
        assert cause is not None
        assert message in str(cause)
        if name not in FAILS_ONCE:
            with pytest.raises(type(cause)):
                exec(told.value.script)


@pytest.mark.floats
@sizes(8, 30)
def test_injected_kv_is_as_the_oracle_says(size: int) -> None:
    """Under pressure, with aborts and priorities; they go on until some have lost what was injected."""

    def is_enough(seen: Tally) -> bool:
        return seen.histories >= size and seen.injected > 500 and seen.lost_injected > 0 and seen.replaced > 0

    assert is_enough(fuzz(SECONDS, INJECTED_SEED, 200, among=injected(), is_enough=is_enough))


@pytest.mark.floats
@pytest.mark.full
def test_a_planted_fault_in_injected_kv_is_found() -> None:
    """KV at other positions than the join's own."""
    with planted("joined-after-the-last-child"), pytest.raises(Failure) as told:
        fuzz(SECONDS, INJECTED_SEED, 200, shrinks=False, among=injected())
    assert told.value.__cause__ is not None


@pytest.mark.parametrize(
    ("seen", "complaint"), [(Tally(19, 0, 20), "19 histories"), (Tally(20, 0, 19), "19 joins"), (Tally(20, 0, 20), "")]
)
def test_too_little_is_a_failure(seen: Tally, complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """After too few histories or joins it means nothing that no fault was found."""
    monkeypatch.setattr(fuzzer, "replay", lambda history: Tally())
    monkeypatch.setattr(fuzzer, "fuzz", lambda seconds, seed, among, **more: Tally() if more else seen)
    monkeypatch.setattr("sys.argv", ["fuzz"])
    assert fuzzer.main() == bool(complaint)
    assert complaint in capsys.readouterr().err
