# SPDX-License-Identifier: Apache-2.0
"""The fuzzer on V1 finds trees with joins, and would find a fault of the plug-in in them."""

from typing import Any

import pytest
from hypothesis import strategies as st

from mytests.faults import fault_named
from mytests.faults.planting import planted
from mytests.fuzz import History
from mytests.fuzz_draw import histories
from mytests.fuzz_trials import first_failure, short_run
from mytests.tiers import full, sizes

pytestmark = pytest.mark.model


@pytest.mark.floats
@sizes(12, 30)
def test_a_short_run_finds_no_fault_in_trees_with_joins(size: int) -> None:
    """The histories are the same on every run, and go on until each kind was among them."""
    tally = short_run(7, size)
    assert tally.unseen == []
    assert tally.sequences > 2 * tally.histories


def _has_plain_joins(history: History) -> bool:
    """Whether what children sampled becomes part of their parent's context."""
    setup = history.setup
    return setup.block_on != "never" and setup.child_context == "parent" and setup.merges


ALL = histories(())
FAULTS = [
    pytest.param("merged-backwards", ALL, "should be", id="merged-backwards"),
    full("kv-not-copied", ALL, "the model has", id="kv-not-copied"),
    full("blocks-leaked", ALL, "KV cache", id="blocks-leaked"),
    full("childs-adapter", ALL, "the model has", id="childs-adapter"),
    full("shared-grammar", histories(("grammar",)), "", id="shared-grammar"),
    full(
        "stop-strings-across-a-join", histories(("stop",)).filter(_has_plain_joins), "", id="stop-strings-across-a-join"
    ),
    full("seeds-at-random", histories(("sampled",)), "and then", id="seeds-at-random"),
    full("limits-across-a-join", ALL, "r", id="limits-across-a-join"),
    full("penalties-across-a-join", histories(("penalties",)), "", id="penalties-across-a-join"),
    full("deltas-lost", histories(("stream_children",)), "deltas", id="deltas-lost"),
]


@pytest.mark.parametrize(("name", "among", "message"), FAULTS)
def test_a_planted_fault_is_found(name: str, among: st.SearchStrategy[Any], message: str) -> None:
    """A planted fault of the plug-in, or of what it relies on, is reported."""
    with planted(fault_named(name)):
        failure = first_failure(4, 300, among)
    assert message in str(failure.__cause__)
