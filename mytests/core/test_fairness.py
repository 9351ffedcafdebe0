# SPDX-License-Identifier: Apache-2.0
"""Which tree goes next, on plain values; `mytests/rules/test_fairness.py` has what it comes to on the engines."""

import dataclasses

import pytest

from mytests.harness.plain import LIMITS, PlainSequence, Trees, child_of, handler
from sequence_hooks.admission.order import LEAST_CHILDREN_PER_TURN, AdmissionOrder
from sequence_hooks.admission.patience import STEPS_OF_PATIENCE, STEPS_OF_PATIENCE_FOR_KV, Patience, Shortage
from sequence_hooks.tree.branch import Branch


class Waiting:
    """Trees whose sequences are their own names, all as urgent."""

    def __init__(
        self, names: str = "", num_children: int = 3, num_rows_each: int = 1, limit: int | None = None
    ) -> None:
        self.queue: AdmissionOrder[str] = AdmissionOrder(lambda name: 0)
        self.queue.num_rows_each = num_rows_each
        self.trees = Trees()
        self.limits = dataclasses.replace(LIMITS, max_running_children=limit)
        self.roots = {name: self.tree(name, num_children) for name in names}

    def tree(self, name: str, num_children: int) -> Branch[PlainSequence]:
        """The root of a tree that runs, with children that wait."""
        root = self.trees.add_root(PlainSequence(name), self.limits)
        self.queue.start(root, name)
        for _ in range(num_children):
            child = child_of(self.trees, root, handler())
            self.queue.append(child, child.request_id)
        return root

    def next_root(self) -> object:
        first = self.queue.first()
        return None if first is None else first.root

    def admit(self, num: int) -> list[str]:
        """The names that are admitted next."""
        names = []
        for _ in range(num):
            first = self.queue.first()
            if first is None or first.head is None:
                break
            name = first.head
            names.append(name)
            root, _, number = name.partition("_child_")
            branch = next(each for each in self.trees.roots if each.request_id == root)
            self.queue.start(branch.children[int(number)], name)
        return names


def test_trees_at_their_shares_are_admitted_alternately() -> None:
    """The tree with the fewest running sequences goes first, however many of its children wait."""
    waiting = Waiting("rs")
    assert waiting.admit(5) == ["r_child_0", "s_child_0", "r_child_1", "s_child_1", "r_child_2"]
    running = [waiting.queue.share_of(name) for name in ("r", "r_child_2", "s_child_1", "s_child_2")]
    assert running[0] is running[1] is not running[2] and running[3] is None
    assert len(waiting.queue) == 1 and list(waiting.queue) == ["s_child_2"]


def test_within_its_share_the_first_goes_on() -> None:
    """One tree after the other gets its share, then what is left is divided."""
    assert Waiting("rs", num_rows_each=3).admit(5) == ["r_child_0", "r_child_1", "s_child_0", "s_child_1", "r_child_2"]


def test_a_share_that_has_changed_is_noticed() -> None:
    """With fewer requests the tree at the head is below its share again, and with more at it."""
    waiting = Waiting("r", 4)
    waiting.queue.divide(8, 1)
    assert waiting.queue.num_rows_each == 4
    first = waiting.queue.first()
    assert first is not None and first.key == (0, 0, 0, 0)
    waiting.queue.divide(8, 100)
    assert waiting.queue.first() is first and first.key == (0, 1, 0, 0)
    assert list(waiting.queue.heads()) == ["r_child_0"]


def test_a_new_request_goes_first_when_the_turn_is_over() -> None:
    """It is the turn of all that have arrived until then, and after them the tree's again."""
    waiting = Waiting("r", 4, num_rows_each=2)
    waiting.queue.num_arrived = 2
    waiting.queue.stop("r")
    assert waiting.queue.goes_before((0, 0, 0, 1)) and waiting.queue.goes_before(None)
    for name in waiting.admit(LEAST_CHILDREN_PER_TURN):
        waiting.queue.stop(name)
    assert not waiting.queue.goes_before((0, 0, 0, 1))
    assert waiting.queue.goes_before((0, 0, 0, 2))


def test_what_has_begun_begins_again_before_the_others() -> None:
    """A child that is preempted counts once in its tree's turn."""
    waiting = Waiting("r", num_rows_each=2)
    root = waiting.roots["r"]
    assert waiting.admit(1) == ["r_child_0"]
    waiting.queue.appendleft(root.children[0], "r_child_0")
    assert "r_child_0" in waiting.queue
    assert waiting.admit(3) == ["r_child_0", "r_child_1", "r_child_2"]


@pytest.mark.parametrize("limit", [1, 2])
def test_no_more_children_are_admitted_than_may_run(limit: int) -> None:
    """The tree's own sequence goes on; without a limit there is room for any number."""
    waiting = Waiting("r", num_rows_each=9, limit=limit)
    root = waiting.roots["r"]
    assert waiting.queue.child_room(root) == limit
    assert len(waiting.admit(3)) == limit and waiting.queue.child_room(root) == 0
    assert not waiting.queue.goes_before(None)
    waiting.queue.appendleft(root, "r")
    first = waiting.queue.first()
    assert first is not None and first.head == "r"
    assert Waiting().queue.child_room(Waiting().tree("s", 0)) is None


def test_the_tree_with_most_beyond_its_share_gives_a_slot_back() -> None:
    """Its newest child, unless the tree is more urgent than the one that waits."""
    waiting = Waiting("rs")
    waiting.admit(5)
    crowded = waiting.queue.tree_with_most_rows(0, waiting.queue.num_rows_each)
    assert crowded is not None and crowded.newest_child == "r_child_2"
    assert waiting.queue.tree_with_most_rows(1, 1) is None
    waiting.queue.divide(8, 0)
    assert waiting.queue.tree_with_most_rows(0, waiting.queue.num_rows_each) is None
    assert waiting.queue.idle_tree() is None


def test_a_tree_is_forgotten_when_nothing_of_it_is_left() -> None:
    """It may end before its sequences have left."""
    waiting = Waiting("r", 1)
    waiting.queue.end(waiting.roots["r"])
    waiting.queue.stop("r")
    assert waiting.queue.has_trees
    waiting.queue.remove("r_child_0")
    waiting.queue.remove("r_child_0")
    assert not waiting.queue.has_trees and not list(waiting.queue.running)
    assert waiting.queue.first() is None and waiting.queue.idle_tree() is None


def test_a_request_without_a_tree_is_one_by_itself() -> None:
    """It starves as long as it waits, and is forgotten when it leaves."""
    waiting = Waiting()
    waiting.queue.appendleft(None, "q")
    assert waiting.queue.idle_tree() is waiting.queue.first()
    assert waiting.queue.first() is not None
    waiting.queue.remove("q")
    assert not waiting.queue.has_trees


def test_keys_that_no_longer_count_are_dropped() -> None:
    """However often the number of sequences that run has changed."""
    waiting = Waiting("r", 2)
    root = waiting.roots["r"]
    for _ in range(100):
        waiting.queue.stop("r")
        waiting.queue.start(root, "r")
    assert len(waiting.queue._heap._heap) < 30


def test_patience_ends_after_some_steps_with_the_same_head() -> None:
    """Another head begins anew, and so does nobody."""
    patience = Patience(STEPS_OF_PATIENCE)
    assert [patience.is_over("a") for _ in range(STEPS_OF_PATIENCE + 2)].index(True) == STEPS_OF_PATIENCE
    assert not patience.is_over("b") and not patience.is_over(None)
    assert not any(patience.is_over(None) for _ in range(10))


def test_where_kv_is_short_new_requests_have_more_patience() -> None:
    """It counts as short for some steps after it was; who is at the head for so long waits no longer."""
    shortage = Shortage()
    shortage.begin_step("a")
    assert not shortage.is_recent
    waits = []
    for _ in range(STEPS_OF_PATIENCE_FOR_KV + 2):
        shortage.note()
        shortage.begin_step("a")
        waits.append(shortage.is_recent and not shortage.is_urgent)
    assert waits.index(False) == STEPS_OF_PATIENCE_FOR_KV
    for _ in range(STEPS_OF_PATIENCE_FOR_KV):
        shortage.begin_step("b")
    shortage.begin_step("b")
    assert not shortage.is_recent and not shortage.is_urgent


def test_where_kv_is_tight_the_oldest_trees_have_their_parts_of_the_rows_first() -> None:
    """Whatever else they have; then it is the next part's turn. Otherwise the one with least goes first."""
    waiting = Waiting("rs", 6)
    waiting.queue.go_by_age(num_rows=8)
    assert waiting.admit(7) == [f"{name}_child_{number}" for name in "rs" for number in range(3)] + ["r_child_3"]
    for child in ("s_child_3", "r_child_4"):
        waiting.queue.go_by_share()
        assert waiting.admit(1) == [child]


@pytest.mark.parametrize(("num_rows", "num_first"), [(1, 1), (2, 1), (4, 2), (6, 3), (40, 9)])
def test_at_most_four_trees_go_on_at_once(num_rows: int, num_first: int) -> None:
    """With few slots they have four each, and leave one to others. The first of six trees runs itself, too."""
    waiting = Waiting("rstuvw", 12)
    waiting.queue.go_by_age(num_rows)
    assert waiting.admit(num_first + 1) == [f"r_child_{number}" for number in range(num_first)] + ["s_child_0"]


def test_a_tree_of_which_nothing_runs_for_long_goes_first_once() -> None:
    """However young it is: what it holds is free again when it ends."""
    waiting = Waiting("rs", 9)
    waiting.queue.stop("s")
    for _ in range(STEPS_OF_PATIENCE_FOR_KV):
        waiting.queue.go_by_age(num_rows=32)
        assert waiting.queue.idle_tree() is None
    waiting.queue.go_by_age(num_rows=32)
    starving = waiting.queue.idle_tree()
    assert starving is not None and starving is waiting.queue.first()
    assert waiting.admit(2) == ["s_child_0", "r_child_0"]
    assert waiting.queue.idle_tree() is None


def test_the_oldest_tree_goes_before_new_requests_within_its_share_alone() -> None:
    """As any other tree does."""
    waiting = Waiting("r", num_rows_each=2)
    waiting.queue.go_by_age(num_rows=8)
    assert waiting.queue.goes_before((0, 0, 0, 0)) and waiting.queue.goes_before(None)
    waiting.admit(1)
    assert not waiting.queue.goes_before((0, 0, 0, 0)) and waiting.queue.goes_before(None)


def test_without_shares_the_first_tree_goes_first() -> None:
    """Whatever it has, until slots are divided again."""
    waiting = Waiting("rs")
    waiting.queue.suspend_shares()
    assert waiting.admit(3) == ["r_child_0", "r_child_1", "r_child_2"]


def test_what_lost_its_kv_waits_for_what_has_some() -> None:
    """Within a tree and among trees; the tree's own sequence is the first of either kind."""
    waiting = Waiting("r", num_rows_each=9)
    root = waiting.roots["r"]
    waiting.admit(1)
    waiting.queue.put_back(root.children[0], "r_child_0")
    waiting.queue.put_back(root, "r")
    assert list(waiting.queue) == ["r_child_1", "r_child_2", "r", "r_child_0"]
    for name in ("r_child_1", "r_child_2"):
        waiting.queue.remove(name)
    first = waiting.queue.first()
    assert first is not None and (first.head, first.key) == ("r", (0, 0, 1, 0))
    waiting.tree("s", 1)
    assert list(waiting.queue.heads()) == ["s_child_0", "r"]


def test_where_kv_is_short_what_goes_on_goes_first() -> None:
    """Before what has yet to begin: a tree that ends frees what it holds."""
    waiting = Waiting("rs", num_rows_each=2)
    assert waiting.admit(2) == ["r_child_0", "s_child_0"]
    for name in ("r", "s"):
        waiting.queue.stop(name)
        waiting.queue.appendleft(waiting.roots[name].children[0], f"{name}_child_0")
    assert waiting.admit(1) == ["s_child_0"]
    waiting.queue.suspend_shares()
    assert waiting.admit(3) == ["r_child_0", "r_child_1", "r_child_2"]


def test_shares_that_are_suspended_are_noticed_by_all_trees() -> None:
    """Also by those that were far from being the first."""
    waiting = Waiting("rst", 2)
    waiting.queue.start(waiting.roots["t"].children[1], "t_child_1")
    waiting.queue.appendleft(waiting.roots["t"].children[0], "t_child_0")
    assert waiting.next_root() is waiting.roots["r"]
    waiting.queue.suspend_shares()
    assert waiting.next_root() is waiting.roots["t"]
    waiting.queue.divide(3, 0)
    assert waiting.next_root() is waiting.roots["r"]
