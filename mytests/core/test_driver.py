# SPDX-License-Identifier: Apache-2.0
"""The driver of fork and join on an engine of lists: what it asks of an engine, and in what order."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mytests.harness.characters import EOS, PROMISE, SYNC, ids
from mytests.harness.plain_engine import HOOKS, ComputedSequence, PlainBranch, PlainEngine, fed
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.events import TreeEvent
from sequence_hooks.tree.rules import Decision

ABORTS: list[Callable[[], None]] = []
"""What the next join function does first."""


def join_after_aborting(children: Any) -> str:
    """A join function that does harm."""
    ABORTS.pop()()
    return "x"


def join_with_a_stranger(children: Any) -> list[int]:
    """A join function whose token no vocabulary has."""
    return [1000]


def refusing(engine: PlainEngine, does: Callable[[PlainBranch], None]) -> None:
    """Let ``does`` be called in place of the making of a child."""

    def make_child(parent: PlainBranch, spec: ChildSpec, own_params: Any) -> ComputedSequence:
        does(parent)
        return ComputedSequence("a child", ids("p"))

    engine.make_child = make_child  # type: ignore[method-assign]


def detach_next(engine: PlainEngine) -> None:
    """Let the next children be detached, whatever the token says."""
    sampled = engine.driver.sampled

    def detaching(*args: Any, **kwargs: Any) -> Decision | None:
        engine.driver.sampled = sampled  # type: ignore[method-assign]
        decision = sampled(*args, **kwargs)
        assert decision is not None
        children = tuple((msgspec.structs.replace(spec, is_detached=True), own) for spec, own in decision.children)
        return dataclasses.replace(decision, children=children)

    engine.driver.sampled = detaching  # type: ignore[method-assign]


class Order:
    """Records the events of trees, and the calls of the scheduler's port, as they come."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def note(self, branch: Branch[Any], event: TreeEvent) -> None:
        self.names.append(type(event).__name__)

    def watch(self, engine: PlainEngine) -> None:
        """Record the calls of ``engine``, too."""
        for name in ("enqueue_children", "block_sequence", "enqueue_joined", "finish_joined", "append_merge"):
            setattr(engine, name, self._recording(name, getattr(engine, name)))

    def _recording(self, name: str, does: Callable[..., None]) -> Callable[..., None]:
        def recorded(*args: Any) -> None:
            self.names.append(name)
            does(*args)

        return recorded


class TestTheStory:
    def test_a_parent_is_set_aside_and_joined(self) -> None:
        """The tree learns of each step before the engine carries it out, and of a join after its tokens are there."""
        order = Order()
        engine = PlainEngine(HOOKS, observers=[order])
        order.watch(engine)
        root = engine.add("r")
        fed(engine, root, "a", PROMISE, SYNC)
        (child,) = root.children
        fed(engine, child, "b", EOS)
        fed(engine, root, EOS)
        assert order.names == [
            *("Spawned", "enqueue_children", "Blocked", "block_sequence"),
            *("Ended", "append_merge", "Joined", "enqueue_joined", "Ended"),
        ]
        assert root.sequence.output_token_ids == [ord("a"), PROMISE, SYNC, ord("b"), EOS]
        engine.assert_empty()

    def test_a_chain_of_ended_parents_is_joined_at_once(self) -> None:
        """A join that finishes its sequence makes the parent of that ready, in the same call."""
        engine = PlainEngine(dataclasses.replace(HOOKS, max_child_depth=3))
        branch = root = engine.add("r")
        for _ in range(3):
            fed(engine, branch, PROMISE, EOS)
            (branch,) = branch.children
        fed(engine, branch, EOS)
        engine.driver.join_ready()
        assert {each.phase for each in root.subtree()} == {"finished"}
        engine.assert_empty()

    def test_a_join_that_fills_the_model_waits_for_detached_children(self) -> None:
        """It is BLOCKED until they are done, and finishes with the length that it had."""
        engine = PlainEngine(HOOKS, max_len=7)
        root = engine.add("r")
        detach_next(engine)
        fed(engine, root, PROMISE)
        fed(engine, root, PROMISE, SYNC)
        detached, child = root.children
        fed(engine, child, "a", "b", "c")
        engine.driver.join_ready()
        assert (root.phase, root.outcome) == ("blocked", "length")
        fed(engine, detached, EOS)
        engine.driver.join_ready()
        assert (root.phase, root.sequence.outcome) == ("finished", "length")
        engine.assert_empty()


class TestWhatFails:
    def test_a_child_that_cannot_be_made_costs_its_token_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        """Its parent goes on as if the token were an ordinary one, and the log says why."""
        engine = PlainEngine(HOOKS)

        def does(parent: PlainBranch) -> None:
            raise ValueError("no such parameter")

        refusing(engine, does)
        root = engine.add("r")
        with caplog.at_level(logging.ERROR):
            fed(engine, root, PROMISE, EOS)
        assert (root.children, root.phase) == ([], "finished")
        assert "no such parameter" in caplog.text
        engine.assert_empty()

    def test_nothing_is_spawned_for_a_parent_that_was_aborted_meanwhile(self) -> None:
        """Code of a user's runs while children are made."""
        engine = PlainEngine(HOOKS)
        refusing(engine, engine.abort)
        root = engine.add("r")
        fed(engine, root, PROMISE)
        assert (root.children, root.phase) == ([], "finished")
        engine.assert_empty()

    def test_a_join_function_may_abort_its_parent(self) -> None:
        """Nothing is appended to it then."""
        engine = PlainEngine(dataclasses.replace(HOOKS, child_merge_strategy=f"{__name__}.join_after_aborting"))
        root = engine.add("r")
        ABORTS.append(lambda: engine.abort(root))
        fed(engine, root, PROMISE, SYNC)
        fed(engine, root.children[0], EOS)
        engine.driver.join_ready()
        assert (root.phase, root.sequence.output_token_ids) == ("finished", [PROMISE, SYNC])
        engine.assert_empty()

    def test_what_is_assembled_has_tokens_of_the_vocabulary(self, caplog: pytest.LogCaptureFixture) -> None:
        """Otherwise nothing is merged for the children, and the log says why."""
        fields: dict[str, Any] = {"sync_token_id": None, "block_on": "never"}
        strange = f"{__name__}.{join_with_a_stranger.__name__}"
        hooks = dataclasses.replace(HOOKS, **fields, child_merge_strategy=strange)
        engine = PlainEngine(hooks, vocab_size=500)
        root = engine.add("r")
        fed(engine, root, PROMISE, EOS)
        with caplog.at_level(logging.ERROR):
            fed(engine, root.children[0], EOS)
            engine.driver.join_ready()
        assert root.phase == "finished"
        assert "a join function failed" in caplog.text and "1000" in caplog.text
        engine.assert_empty()

    def test_resuming_names_those_that_wait(self) -> None:
        """An id that does not wait is an error, as is a token outside of the vocabulary, and nothing changes."""
        engine = PlainEngine(dataclasses.replace(HOOKS, sync_resume="manual"))
        root = engine.add("r")
        fed(engine, root, SYNC)
        with pytest.raises(ValueError, match=r"'s', and no such sequence waits.*'r'"):
            engine.driver.resume("s", ids("x"))
        with pytest.raises(ValueError, match="give a text, or a list of token ids"):
            engine.driver.resume("r", [-1])
        engine.driver.resume("r", ids("x"))
        fed(engine, root, EOS)
        assert root.sequence.output_token_ids == [SYNC, ord("x"), EOS]
        engine.assert_empty()


class TestLimits:
    def test_a_request_without_hooks_spawns_nothing(self) -> None:
        """Its tree exists, and its tokens are ordinary ones."""
        engine = PlainEngine(HOOKS)
        root = engine.add("r")
        root.tree.limits = dataclasses.replace(root.tree.limits, hooks=False)
        fed(engine, root, PROMISE, SYNC, EOS)
        assert (root.children, root.phase) == ([], "finished")
        engine.assert_empty()

    def test_a_budget_is_used_up_once(self) -> None:
        """Though another sequence samples in the same step."""
        order = Order()
        engine = PlainEngine(dataclasses.replace(HOOKS, max_tree_tokens=4), observers=[order])
        root = engine.add("r")
        fed(engine, root, PROMISE, PROMISE)
        fed(engine, root.children[0], "a", "b")
        engine.sample(root, ord("c"))
        engine.driver.join_ready()
        assert {each.outcome for each in root.subtree()} == {"length"}
        assert order.names.count("Limited") == 1
        engine.assert_empty()

    def test_children_come_before_their_parents_where_all_are_aborted(self) -> None:
        """So that a parent that is aborted has none left."""
        engine = PlainEngine(dataclasses.replace(HOOKS, max_child_depth=2))
        root = engine.add("r")
        fed(engine, root, PROMISE)
        fed(engine, root.children[0], PROMISE)
        below = engine.driver.unfinished_below([root, root.children[0]])
        assert [branch.depth for branch in below] == [2, 1, 0]
        engine.abort(root)
        engine.assert_empty()

    def test_who_is_aborted_alone_takes_all_below_with_it(self) -> None:
        """An engine that frees one sequence at a time need not know the others."""
        engine = PlainEngine(dataclasses.replace(HOOKS, max_child_depth=2))
        root = engine.add("r")
        fed(engine, root, PROMISE)
        fed(engine, root.children[0], PROMISE)
        below = engine.driver.unfinished_below(root.children)
        engine.queue.remove(root)
        engine.driver.abort(root)
        assert [branch.outcome for branch in (root, *below)] == ["failed"] * 3
        engine.assert_empty()
