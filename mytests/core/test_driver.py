# SPDX-License-Identifier: Apache-2.0
"""The driver of fork and join on an engine of lists: what it asks of an engine, and in what order.

What a tree comes to is in `mytests/rules`, on the real engines, and in `test_driver_walks.py`.
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from mytests.harness.plain_engine import HOOKS, PlainEngine
from mytests.harness.stepped import plan
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.events import TreeEvent
from sequence_hooks.tree.rules import Decision

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


def join_with_a_stranger(children: Any) -> list[int]:
    """A join function whose token no vocabulary has."""
    return [1000]


def detaching_second(sampled: Callable[..., Decision | None]) -> Callable[..., Decision | None]:
    """As a driver decides, but second children are detached, whatever their token says."""

    def detaching(*args: Any) -> Decision | None:
        decision = sampled(*args)
        if decision is None:
            return None
        children = tuple((structs.replace(spec, is_detached=spec.number == 1), own) for spec, own in decision.children)
        return dataclasses.replace(decision, children=children)

    return detaching


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
    engine.assert_empty()


def test_a_chain_of_ended_parents_is_joined_at_once() -> None:
    """A join that finishes its sequence makes the parent of that ready, in the same call."""
    engine = PlainEngine(NESTED)
    engine.add()
    steps = engine.run(plan(r="!", r_child_0="!", r_child_0_child_0="!", r_child_0_child_0_child_0=""))
    assert steps == 4, "in the last one two sequences end"
    engine.assert_empty()


def test_a_tree_without_hooks_spawns_nothing() -> None:
    """Its tokens are ordinary ones."""
    engine = PlainEngine()
    root = engine.add(extra_args={"hooks": False})
    engine.run(plan(r="!."))
    assert (root.children, root.phase) == ([], "finished")
    engine.assert_empty()


def test_a_join_that_fills_the_model_waits_for_detached_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is BLOCKED until they are done, and finishes with the length that it had."""
    engine = PlainEngine(max_model_len=7)
    root = engine.add(prompt="pp")
    monkeypatch.setattr(engine.driver, "sampled", detaching_second(engine.driver.sampled))
    script = plan(r="!!.", r_child_0="ab", r_child_1="xxx")
    engine.run_until(lambda: root.outcome is not None, script)
    assert (root.phase, root.outcome, engine.queues()["blocked"]) == ("blocked", "length", ["r"])
    engine.run(script)
    assert (root.phase, root.sequence.outcome) == ("finished", "length")
    engine.assert_empty()


def test_a_budget_is_used_up_once() -> None:
    """Though another sequence samples in the same step."""
    order = Order()
    engine = PlainEngine(dataclasses.replace(HOOKS, max_tree_tokens=4), observers=[order])
    root = engine.add()
    engine.run(plan(r="!abc", r_child_0="def"))
    assert {each.outcome for each in root.subtree()} == {"length"}
    assert order.names.count("Limited") == 1
    engine.assert_empty()


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


def test_what_is_assembled_has_tokens_of_the_vocabulary(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise nothing is merged for detached children, and the log says why."""
    fields: dict[str, Any] = {"sync_token_id": None, "block_on": "never"}
    strange = f"{__name__}.{join_with_a_stranger.__name__}"
    engine = PlainEngine(dataclasses.replace(HOOKS, **fields, child_merge_strategy=strange), vocab_size=500)
    root = engine.add()
    with caplog.at_level(logging.ERROR):
        engine.run(plan(r="!", r_child_0=""))
    assert root.phase == "finished"
    assert "a join function failed" in caplog.text and "1000" in caplog.text
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
