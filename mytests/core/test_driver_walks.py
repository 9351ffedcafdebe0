# SPDX-License-Identifier: Apache-2.0
"""Random walks of the driver on an engine of lists: every tree comes to what the rules say, in whatever order."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from mytests.fuzz.handlers import REPLACING
from mytests.fuzz.walks import Draw, Walks, walk
from mytests.harness.plain_engine import PlainEngine
from sequence_hooks.config import SpecialKwargs

pytestmark = pytest.mark.no_cover

SHORT, LONG = 200, 1_500
"""Walks of a machine in `make test`, which reach the most of what they must, and in `make test-all`."""


class PlainWalks(Walks):
    """KV is evicted and slots are refused whenever a walk says so."""

    must_arise = frozenset(
        {
            *("injected", "refused slots", "gave up its KV", "resumed", "assembled", "overlapping"),
            *(f"abort {queue} at depth {depth}" for queue in ("running", "blocked") for depth in (0, 1)),
            *("ended as stopped", "ended as length", "ended as cancelled", "ended at a join", "waited by name"),
            *("cancelled as stopped", "cancelled as failed", "cancelled at depth 1", "cancelled at depth 2"),
            *("ended without children", "ended at its first join"),
        }
    )
    engine: PlainEngine

    def make_engine(self, hooks: dict[str, Any], draw: Draw) -> PlainEngine:
        return PlainEngine(SpecialKwargs(**hooks), max_model_len=draw(60, 24, 100))

    @rule(has_slots=st.sampled_from([True, True, False]))
    def fill(self, has_slots: bool) -> None:
        """Lets the engine have slots for a whole context, or not."""
        self.engine.has_slots = has_slots
        self.seen["refused slots"] += not has_slots

    @invariant()
    def nobody_keeps_kv_without_use(self) -> None:
        """Queues and trees agree, and nobody's KV is kept who has no use for it."""
        for phase, queue in (("live", self.engine.queue), ("blocked", self.engine.blocked)):
            assert {*queue} == {each for each in self.engine.driver.trees.branches if each.phase == phase}
        for child in self.engine.kept.values():
            assert child.parent is not None and child in child.parent.unjoined and child.parent.phase != "finished"

    def check_output(self, name: str) -> None:
        """Also that only the request's own context is left."""
        super().check_output(name)
        tree = self.trees[name]
        assert [branch for branch in tree.subtree() if not branch.sequence.is_released] == [tree]


class BudgetWalks(PlainWalks):
    """Trees may sample few tokens, and have few sequences."""

    must_arise = frozenset({"used up at depth 2", "used up without a token", "too many sequences", "ended as length"})
    budgets = (4, 8, 20, 50)
    most_sequences = (None, 4)


class ReplacingWalks(PlainWalks):
    """Joins replace the ends of contexts, and are beside others that inject."""

    must_arise = frozenset({"injected", "gave up its KV", *(f"replaced at depth {depth}" for depth in range(3))})
    handlers = (REPLACING,)
    budgets = (None, None, 50)


@pytest.mark.rule(14, 15)
@pytest.mark.parametrize("machine", [PlainWalks, BudgetWalks, ReplacingWalks])
@pytest.mark.parametrize(
    "size", [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.full)]
)
def test_random_walks(size: int, machine: type[PlainWalks]) -> None:
    """All invariants hold, and the walks reach all that they must."""
    walk(machine, size, 1.0 if size == LONG else 0.5)
