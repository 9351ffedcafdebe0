# SPDX-License-Identifier: Apache-2.0
"""The driver of fork and join on an engine of lists: what it asks of an engine, and in what order."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from mytests.harness.plain_engine import HOOKS, PlainEngine
from mytests.harness.stepped import plan
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.events import TreeEvent

NESTED = dataclasses.replace(HOOKS, max_child_depth=3)


class Order:
    """Records the events of trees, and the calls of the scheduler's port, as they come."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def note(self, branch: Branch[Any], event: TreeEvent) -> None:
        self.names.append(type(event).__name__)

    def watch(self, engine: PlainEngine) -> None:
        for name in ("enqueue_children", "block_sequence", "enqueue_joined", "finish_joined", "append_merge"):
            setattr(engine, name, self._recording(name, getattr(engine, name)))

    def _recording(self, name: str, does: Callable[..., None]) -> Callable[..., None]:
        def recorded(*args: Any) -> None:
            self.names.append(name)
            does(*args)

        return recorded


def test_the_tree_learns_of_each_step_before_the_engine_carries_it_out() -> None:
    """And of a join after its tokens are there."""
    order = Order()
    engine = PlainEngine(observers=[order])
    order.watch(engine)
    engine.add()
    engine.run(plan(r="a!.", r_child_0="b"))
    assert order.names == [
        *("Spawned", "enqueue_children", "Blocked", "block_sequence"),
        *("Ended", "append_merge", "Joined", "enqueue_joined", "Ended"),
    ]


def test_a_chain_of_ended_parents_is_joined_at_once() -> None:
    """A join that finishes its sequence makes the parent of that ready, in the same call."""
    engine = PlainEngine(NESTED)
    engine.add()
    steps = engine.run(plan(r="!", r_child_0="!", r_child_0_child_0="!", r_child_0_child_0_child_0=""))
    assert steps == 4, "in the last one two sequences end"


@pytest.mark.parametrize("is_driven", [True, False])
def test_children_are_aborted_before_their_parents(is_driven: bool) -> None:
    """So that a parent that is aborted has none left; an engine that frees one alone need not know the others."""
    engine = PlainEngine(NESTED)
    root = engine.add()
    engine.run_until(lambda: len(engine.queue) == 3, plan(r="!xx", r_child_0="!x", r_child_0_child_0="x"))
    below = engine.driver.unfinished_below([root, root.children[0]])
    assert [branch.depth for branch in below] == [2, 1, 0]
    if is_driven:
        engine.abort("r")
    else:
        engine.queue.remove(root)
        engine.driver.abort(root)
    assert [branch.outcome for branch in below] == ["failed"] * 3
    engine.assert_empty()


class TestOverlap:
    """A child's prefix takes positions, and is not merged: a context has further ones than tokens."""

    HOOKS = dataclasses.replace(
        HOOKS, child_merge_strategy="kv_inject", position_rule="overlap", child_prefix_token_ids=(7,) * 5
    )

    def test_a_promise_needs_a_position_for_a_child(self) -> None:
        """Otherwise it is an ordinary token."""
        engine = PlainEngine(self.HOOKS, max_model_len=17)
        root = engine.add(prompt="pp")
        # "ab" is merged at 8 and 9. The second promise has position 10, and the prefix 11 to 15.
        engine.run(plan(r="!.!!", r_child_0="ab", r_child_1=""))
        assert (len(root.children), [*root.tree.limits_met]) == (2, ["max_model_len"])

    def test_a_caller_gives_no_more_than_has_positions(self) -> None:
        """They are fewer than the tokens that would fit."""
        engine = PlainEngine(dataclasses.replace(self.HOOKS, sync_resume="manual"), max_model_len=20)
        root = engine.add(prompt="pp")
        script = plan(r="!..", r_child_0="ab")
        engine.run(script)
        engine.resume("r", "")
        engine.run(script)
        assert (len(root.sequence.context), engine.room_to_resume("r")) == (7, 9)
