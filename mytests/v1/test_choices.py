# SPDX-License-Identifier: Apache-2.0
"""Who gives up its row or its KV on V1, on plain values.

`mytests/core/test_fairness.py` has how slots are shared, `mytests/v1/test_random_walks.py` what all of it comes to.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from mytests.engine.surgical import SurgicalEngine, finished, plan
from mytests.rules.injecting import SYNC_INJECT
from sequence_hooks.kv.eviction import EvictionCandidate
from sequence_hooks.admission.patience import STEPS_OF_PATIENCE
from sequence_hooks.v1.core.eviction import KVEvictor
from sequence_hooks.admission.policy import AdmissionPolicy

LESS_URGENT = SimpleNamespace(priority=1)
"""A tree of which nothing runs."""


class Trees:
    """Of `AdmissionOrder`, what one step finds: trees by their running sequences, of which the first is the root's."""

    num_rows_each = 2

    def __init__(self, *trees: str, starving: SimpleNamespace | None = None, priority: int = 0) -> None:
        self.trees = [SimpleNamespace(running=list(running)) for running in trees]
        self._starving = starving
        self._priority = priority

    def starving(self) -> SimpleNamespace | None:
        return self._starving

    def share_of(self, sequence: str) -> Any:
        return next((told(tree) for tree in self.trees if sequence in tree.running), None)

    def most_crowded(self, priority: int, beyond: int) -> Any:
        most = told(max(self.trees, key=lambda tree: len(tree.running)))
        return most if self._priority >= priority and most.num_running > max(beyond, 1) else None


def told(tree: SimpleNamespace) -> SimpleNamespace:
    """The tree, with what is derived from its running sequences."""
    tree.num_running = len(tree.running)
    tree.newest_child = tree.running[-1] if tree.num_running > 1 else None
    return tree


def preempted(slots: AdmissionPolicy, trees: Any, new: Any, num_new: int, num_free: int) -> str:
    """The victims of a step, each preempted before the next is chosen."""
    found = ""
    for victim in slots.victims(new, 0, num_new, num_free):
        found += str(victim)
        next(tree for tree in trees.trees if victim in tree.running).running.remove(victim)
    return found


class TestVictims:
    """Capitals are sequences; each tree may have two slots, unless KV is short."""

    @pytest.mark.parametrize(
        ("num_new", "num_free", "victims"),
        [
            (1, 0, "E"),
            (2, 0, "ED"),
            (2, 1, "E"),
            (9, 0, "EDC"),  # The tree has its share left.
            (2, 2, ""),
        ],
    )
    def test_new_requests_take_slots_that_they_waited_for(self, num_new: int, num_free: int, victims: str) -> None:
        """As many as are missing, of the largest tree, down to its share, and not before some steps have passed."""
        trees: Any = Trees("ABCDE", "XY")
        slots = AdmissionPolicy(trees, goes_by_age=True)
        steps = [preempted(slots, trees, "new", num_new, num_free) for _ in range(STEPS_OF_PATIENCE + 1)]
        assert steps == [""] * STEPS_OF_PATIENCE + [victims]

    def test_only_steps_without_enough_slots_count(self) -> None:
        """As long as there are slots for all, nobody has waited."""
        trees: Any = Trees("ABCDE")
        slots = AdmissionPolicy(trees, goes_by_age=True)
        for _ in range(STEPS_OF_PATIENCE + 1):
            preempted(slots, trees, "new", 1, 1)
        assert not preempted(slots, trees, "new", 1, 0)

    @pytest.mark.parametrize(("priority", "victims"), [(0, ""), (1, "E")])
    def test_a_tree_of_which_nothing_runs_takes_one_slot(self, priority: int, victims: str) -> None:
        """Where no new request waits, from a tree that is not more urgent."""
        trees: Any = Trees("ABCDE", starving=LESS_URGENT, priority=priority)
        slots = AdmissionPolicy(trees, goes_by_age=True)
        steps = [preempted(slots, trees, None, 0, 0) for _ in range(STEPS_OF_PATIENCE + 1)]
        assert steps[-1] == victims

    def test_new_requests_go_first(self) -> None:
        """Then it matters what they lack, and not that a tree has no slot."""
        trees: Any = Trees("ABCDE", starving=LESS_URGENT)
        slots = AdmissionPolicy(trees, goes_by_age=True)
        steps = [preempted(slots, trees, "new", 2, 0) for _ in range(STEPS_OF_PATIENCE + 1)]
        assert steps[-1] == "ED"

    @pytest.mark.parametrize(("running", "victims"), [("ABCD", "D"), ("AB", "B"), ("A", "")])
    def test_a_request_that_waited_too_long_for_kv_takes_one(self, running: str, victims: str) -> None:
        """Whatever the tree's share is, if it has a child that runs."""
        trees: Any = Trees(running)
        slots = AdmissionPolicy(trees, goes_by_age=True)
        slots.shortage.is_too_long = True
        assert preempted(slots, trees, "new", 3, 0) == victims


class TestBetterVictim:
    """Capitals are sequences of trees, of which there is one on each side of x, which has none."""

    @pytest.mark.parametrize(
        ("running", "victim"),
        [
            ("ABx", "B"),
            ("ABxDE", None),  # The last one's tree has as many.
            ("ABCxDE", "C"),
        ],
    )
    def test_it_is_the_last_of_the_most_crowded_tree(self, running: str, victim: str | None) -> None:
        """Instead of the last one, if fewer run beside that."""
        trees: Any = Trees(*running.split("x"))
        found: Any = AdmissionPolicy(trees, goes_by_age=True).better_victim(list(running), running[0])  # type: ignore[arg-type]
        assert found == victim

    def test_what_is_scheduled_stays(self) -> None:
        """Only what comes after the one in need is not scheduled yet."""
        trees: Any = Trees("ABC")
        found: Any = AdmissionPolicy(trees, goes_by_age=True).better_victim(["A", "B", "C", "x"], "x")  # type: ignore[arg-type, list-item]
        assert found is None


def held_by(num_tokens: int) -> EvictionCandidate[Any]:
    """A sequence with so many tokens."""
    fields: dict[str, Any] = {"priority": 0, "num_all": 2, "num_owned": 2, "block_size": 4}
    return EvictionCandidate(holder=MagicMock(), num_computed_tokens=num_tokens, **fields)


class TestEvictor:
    def test_it_counts_all(self) -> None:
        """Evictions, and the tokens whose KV is gone."""
        evictor = KVEvictor(MagicMock(), "discard", MagicMock())
        for num_tokens in (5, 3):
            evictor.note(held_by(num_tokens))
        assert (evictor.evictions, evictor.num_recomputed) == ({"discard": 2}, 8)

    def test_a_group_of_layers_may_hold_nothing_of_a_sequence(self) -> None:
        """Null blocks are nobody's; the others may be shared."""
        null, shared, own = ((True, 1), (False, 2), (False, 1))
        blocks = [SimpleNamespace(is_null=is_null, ref_cnt=count) for is_null, count in (null, shared, own)]
        tables: Iterable[dict[str, Any]] = ({"r": blocks}, {})
        managers = [SimpleNamespace(req_to_blocks=each, block_size=4) for each in tables]
        manager: Any = SimpleNamespace(coordinator=SimpleNamespace(single_type_managers=managers))
        request: Any = SimpleNamespace(request_id="r", priority=1, num_computed_tokens=9)
        candidate = KVEvictor(manager, "discard", MagicMock()).candidate(request)
        assert candidate == EvictionCandidate(request, 1, 2, 1, 4, 9)


@pytest.mark.usefixtures("each_mode")
def test_of_kept_kv_all_but_a_busy_parents_may_be_evicted() -> None:
    """Whoever copies it is busy."""
    engine = SurgicalEngine(SYNC_INJECT)
    for name in "rs":
        engine.add(name, prompt="p" * 3)
    children = {"r_child_0": "AB", "s_child_0": "CDE", "r_child_1": "W" * 9, "s_child_1": "W" * 9}
    script = plan(r="!!.y", s="!!.z", **children)
    engine.run_until(lambda: sorted(engine.statuses()) == ["r", "r_child_1", "s", "s_child_1"], script)
    kept = engine.scheduler._kept
    everybody = [(each.holder.request_id, each.num_computed_tokens) for each in kept.candidates(())]
    assert dict(everybody) == {"r_child_0": 2, "s_child_0": 3}
    busy = [engine.request_of("r")]
    assert [each.holder.request_id for each in kept.candidates(busy)] == ["s_child_0"]
    engine.run(script)
    assert finished(engine, "s").text == "CDE\n" + "W" * 9 + "z"
    engine.assert_empty()
