# SPDX-License-Identifier: Apache-2.0
"""Random walks of the driver on an engine of lists: every tree comes to what the rules say, in whatever order."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_walks

from mytests.characters import CHILD, EOS, PROMISE, SYNC, ids
from mytests.core.plain_engine import PlainBranch, PlainEngine
from mytests.reference import Reference
from sequence_hooks.config import SpecialKwargs

TOKENS = st.sampled_from([PROMISE, *ids("xxy"), PROMISE, SYNC, EOS])
MUST_ARISE = {
    *("injected", "refused slots", "evicted", "resumed", "assembled"),
    *(f"aborted {phase} at depth {depth}" for phase in ("live", "blocked") for depth in (0, 1)),
    *("ended as stopped", "ended as length", "ended at a join"),
}
MAX_LIVE = 8


class Walks(RuleBasedStateMachine):
    """Requests that come, spawn, block, join, are resumed, evicted, aborted and end."""

    seen: Counter[str] = Counter()
    """What has arisen, over all walks."""

    engine: PlainEngine

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """An engine with hooks of any kind."""

        def draw(*choices: Any) -> Any:
            return data.draw(st.sampled_from(choices))

        strategy = draw("kv_inject", "concatenate", "none")
        injects = strategy == "kv_inject"
        context = draw("parent", *([] if injects else ["before_trigger", "none"]))
        children = draw(1, 2, 3)
        hooks = SpecialKwargs(
            promise_token_id=PROMISE,
            sync_token_id=SYNC,
            block_on=draw("promise", "sync", *([] if injects else ["never"])),
            child_context=context,
            child_prefix_token_ids=() if context == "parent" else (CHILD,),
            sync_resume=draw("auto", "manual"),
            max_child_depth=draw(3, 2, 1, 0),
            children_per_promise=children,
            max_children=draw(*range(children, 9)),
            child_merge_strategy=strategy,
            position_rule=draw("sequential", "overlap") if injects else "sequential",
        )
        self.engine = PlainEngine(hooks, draw(12, 24, 60))
        self.reference = Reference(hooks, self.engine.length)
        self.roots: list[PlainBranch] = []

    @precondition(lambda self: len(self._unfinished()) < MAX_LIVE)
    @rule(length=st.integers(1, 9))
    def add(self, length: int) -> None:
        """Adds a request."""
        self.roots.append(self.engine.add(f"r{len(self.roots)}", "p" * length))

    @precondition(lambda self: self.roots)
    @rule(tokens=st.lists(TOKENS, min_size=4, max_size=4))
    def step(self, tokens: list[int]) -> None:
        """Takes one step, in which the first sequences of the queue get the tokens."""
        self._step(tokens)

    @precondition(lambda self: self._unfinished())
    @rule(index=st.integers(0, 63))
    def abort(self, index: int) -> None:
        """Aborts any unfinished sequence, with all below it."""
        branch = self._chosen(index)
        self.seen[f"aborted {branch.phase} at depth {branch.depth}"] += 1
        self.engine.abort(branch)

    @precondition(lambda self: self._waiting())
    @rule(index=st.integers(0, 63), text=st.sampled_from(["", "r", "rs" * 10]))
    def resume(self, index: int, text: str) -> None:
        """Resumes a sequence that waits for its caller."""
        waiting = self._waiting()
        self._resume(waiting[index % len(waiting)], text)

    @precondition(lambda self: self.engine.blocked or self.engine.kept)
    @rule(index=st.integers(0, 63))
    def evict(self, index: int) -> None:
        """Takes the KV of a BLOCKED sequence, or of a child that has ended."""
        holding = [*self.engine.blocked, *self.engine.kept.values()]
        self.engine.evict(holding[index % len(holding)])
        self.seen["evicted"] += 1

    @rule(has_slots=st.booleans())
    def fill(self, has_slots: bool) -> None:
        """Lets the engine have slots for a whole context, or not."""
        self.engine.has_slots = has_slots
        self.seen["refused slots"] += not has_slots

    @invariant()
    def books_add_up(self) -> None:
        """Trees and queues are consistent, and nobody's KV is kept who has no use for it."""
        trees = self.engine.driver.trees
        trees.check_integrity()
        assert {*self.engine.queue} == {branch for branch in trees.branches if branch.phase == "live"}
        assert {*self.engine.blocked} == {branch for branch in trees.branches if branch.phase == "blocked"}
        for child in self.engine.kept.values():
            assert child.parent is not None and child in child.parent.unjoined and child.parent.phase != "finished"

    def teardown(self) -> None:
        """All unfinished sequences come to their end, and leave nothing."""
        if not hasattr(self, "engine"):
            return
        while self._unfinished():
            for branch in self._waiting():
                self._resume(branch, "")
            self._step([EOS] * len(self.engine.queue))
        self.engine.assert_empty()
        self.seen["injected"] += self.engine.num_injected
        for root in self.roots:
            for branch in root.subtree():
                self.seen[f"ended as {branch.ended_as}"] += 1
                self.seen["ended at a join"] += branch.ended_at_join
            # An aborted one is forgotten as a whole.
            if not root.has_failed:
                self._check(root)

    def _check(self, root: PlainBranch) -> None:
        """A request's output is what its tree comes to, and only its own context is left."""
        sequence = root.sequence
        expected = self.reference.output(root.request_id, len(sequence.prompt_token_ids), root)
        assert list(sequence.output_token_ids) == expected
        assert [branch for branch in root.subtree() if not branch.sequence.is_released] == [root]
        self.seen["assembled"] += root.has_detached_below

    def _step(self, tokens: list[int]) -> None:
        self.engine.driver.join_ready()
        for branch, token_id in zip(list(self.engine.queue), tokens, strict=False):
            self.engine.sample(branch, self.reference.feed(branch.request_id, token_id))

    def _resume(self, branch: PlainBranch, text: str) -> None:
        given = ids(text)[: self.engine.driver.room_to_resume(branch)]
        self.reference.given.setdefault(branch.request_id, []).append(given)
        self.engine.driver.resume(branch.request_id, given)
        self.seen["resumed"] += 1

    def _chosen(self, index: int) -> PlainBranch:
        unfinished = self._unfinished()
        return unfinished[index % len(unfinished)]

    def _waiting(self) -> list[PlainBranch]:
        return list(self.engine.driver.trees.awaiting_resume())

    def _unfinished(self) -> list[PlainBranch]:
        return [*self.engine.queue, *self.engine.blocked] if hasattr(self, "engine") else []


@pytest.mark.parametrize(
    "size", [pytest.param(300, id="short"), pytest.param(5_000, id="long", marks=pytest.mark.full)]
)
def test_random_walks(size: int) -> None:
    """All invariants hold, and the walks reach all that they must."""
    Walks.seen.clear()
    run_walks(
        Walks,
        settings=settings(max_examples=size, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)),
    )
    missing = {name for name in MUST_ARISE if not Walks.seen[name]}
    assert not missing, Walks.seen
