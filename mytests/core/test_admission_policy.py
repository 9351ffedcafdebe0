# SPDX-License-Identifier: Apache-2.0
"""Who makes room for whom, on plain values; `mytests/core/test_fairness.py` has the order of trees."""

from types import SimpleNamespace
from typing import Any

import pytest

from sequence_hooks.admission.patience import STEPS_OF_PATIENCE
from sequence_hooks.admission.policy import AdmissionPolicy

LESS_URGENT = SimpleNamespace(priority=1)
"""A tree of which nothing runs."""


class Trees:
    """Of `AdmissionOrder`, what one step finds: trees by their running sequences, of which the first is the root's."""

    num_rows_each = 2
    order = ""
    """In what order they go."""

    def __init__(self, *trees: str, starving: SimpleNamespace | None = None, priority: int = 0) -> None:
        self.trees = [SimpleNamespace(running=list(running)) for running in trees]
        self._starving = starving
        self._priority = priority

    def go_by_age(self, num_rows: int) -> None:
        self.order = f"by age, of {num_rows}"

    def go_by_share(self) -> None:
        self.order = "by share"

    def suspend_shares(self) -> None:
        self.order += ", first"

    def divide(self, num_rows: int, num_others: int) -> None:
        self.order += f", {num_rows} among {num_others} others"

    def idle_tree(self) -> SimpleNamespace | None:
        return self._starving

    def share_of(self, sequence: str) -> Any:
        return next((told(tree) for tree in self.trees if sequence in tree.running), None)

    def tree_with_most_rows(self, priority: int, beyond: int) -> Any:
        most = told(max(self.trees, key=lambda tree: len(tree.running)))
        return most if self._priority >= priority and most.num_running > max(beyond, 1) else None


def told(tree: SimpleNamespace) -> SimpleNamespace:
    """The tree, with what is derived from its running sequences."""
    tree.num_running = len(tree.running)
    tree.newest_child = tree.running[-1] if tree.num_running > 1 else None
    return tree


def preempted(policy: AdmissionPolicy[Any], trees: Any, new: Any, num_new: int, num_free: int) -> str:
    """The victims of a step, each preempted before the next is chosen."""
    found = ""
    for victim in policy.victims(new, 0, num_new, num_free):
        found += str(victim)
        next(tree for tree in trees.trees if victim in tree.running).running.remove(victim)
    return found


def steps_of(trees: Any, new: Any, num_new: int, num_free: int) -> list[str]:
    """The victims of as many steps as there is patience for, and one more."""
    policy = AdmissionPolicy(trees, goes_by_age=True)
    return [preempted(policy, trees, new, num_new, num_free) for _ in range(STEPS_OF_PATIENCE + 1)]


class TestOrder:
    @pytest.mark.parametrize(
        ("goes_by_age", "is_tight", "was_short", "order"),
        [
            (True, False, False, "by share, 8 among 2 others"),
            (True, True, False, "by age, of 8, 8 among 2 others"),
            (True, False, True, "by age, of 8, first"),
            (False, True, True, "by share, first"),
        ],
    )
    def test_trees_go_by_age_where_kv_is_tight(
        self, goes_by_age: bool, is_tight: bool, was_short: bool, order: str
    ) -> None:
        """And before new requests where it was short lately."""
        trees: Any = Trees("AB")
        policy = AdmissionPolicy(trees, goes_by_age)
        if was_short:
            policy.shortage.note()
        policy.begin_step("new", 8, 2, is_tight)
        assert trees.order == order


class TestVictims:
    """Capitals are sequences; each tree may have two rows, unless KV is short."""

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
    def test_new_requests_take_rows_that_they_waited_for(self, num_new: int, num_free: int, victims: str) -> None:
        """As many as are missing, of the largest tree, down to its share, and not before some steps have passed."""
        assert steps_of(Trees("ABCDE", "XY"), "new", num_new, num_free) == [""] * STEPS_OF_PATIENCE + [victims]

    def test_only_steps_without_enough_rows_count(self) -> None:
        """As long as there are rows for all, nobody has waited."""
        trees: Any = Trees("ABCDE")
        policy = AdmissionPolicy(trees, goes_by_age=True)
        for _ in range(STEPS_OF_PATIENCE + 1):
            preempted(policy, trees, "new", 1, 1)
        assert not preempted(policy, trees, "new", 1, 0)

    @pytest.mark.parametrize(("priority", "victims"), [(0, ""), (1, "E")])
    def test_a_tree_of_which_nothing_runs_takes_one_row(self, priority: int, victims: str) -> None:
        """Where no new request waits, from a tree that is not more urgent."""
        assert steps_of(Trees("ABCDE", starving=LESS_URGENT, priority=priority), None, 0, 0)[-1] == victims

    def test_new_requests_go_first(self) -> None:
        """Then it matters what they lack, and not that a tree has no row."""
        assert steps_of(Trees("ABCDE", starving=LESS_URGENT), "new", 2, 0)[-1] == "ED"

    @pytest.mark.parametrize(("running", "victims"), [("ABCD", "D"), ("AB", "B"), ("A", "")])
    def test_a_request_that_waited_too_long_for_kv_takes_one(self, running: str, victims: str) -> None:
        """Whatever the tree's share is, if it has a child that runs."""
        trees: Any = Trees(running)
        policy = AdmissionPolicy(trees, goes_by_age=True)
        policy.shortage.is_urgent = True
        assert preempted(policy, trees, "new", 3, 0) == victims


class TestBetterVictim:
    """Capitals are sequences of trees, of which there is one on each side of x, which has none."""

    @pytest.mark.parametrize(
        ("running", "in_need", "victim"),
        [
            ("ABx", "A", "B"),
            ("ABxDE", "A", None),  # The last one's tree has as many.
            ("ABCxDE", "A", "C"),
            ("ABCx", "x", None),  # What comes before the one in need is scheduled.
        ],
    )
    def test_it_is_the_last_of_the_most_crowded_tree(self, running: str, in_need: str, victim: str | None) -> None:
        """Instead of the last one, if fewer run beside that."""
        trees: Any = Trees(*running.split("x"))
        found: Any = AdmissionPolicy(trees, goes_by_age=True).better_victim(list(running), in_need)
        assert found == victim
