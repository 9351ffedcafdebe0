# SPDX-License-Identifier: Apache-2.0
"""Random walks of any engine that a subclass of `Walks` makes: whatever happens, in any order, trees stay sound."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_walks

from mytests.fuzz.handlers import HANDLERS, NEWEST, OLDEST
from mytests.fuzz.reference import Reference
from mytests.harness.characters import CHILD, EOS, PROMISE, SYNC, ids
from mytests.harness.stepped import SteppedEngine, finished
from sequence_hooks.tree.branch import Branch

TOKENS = st.sampled_from([PROMISE, *ids("xxxyy"), PROMISE, SYNC, OLDEST, NEWEST, EOS])
MAX_QUEUED = 8
MAX_IDLE_STEPS = 6
"""Enough to preempt all that runs."""

Draw = Callable[..., Any]
"""Draws one of its arguments."""


class Walks(RuleBasedStateMachine):
    """Requests that come, spawn, block, join, are resumed, preempted, aborted and end."""

    seen: ClassVar[Counter[str]]
    """What has arisen, over all walks."""

    must_arise: ClassVar[frozenset[str]]
    """What the walks have to reach."""

    block_on: ClassVar[tuple[str, ...]] = ("promise", "sync", "never")
    """What blocks a parent; what stands there twice is drawn more often."""

    strategies: ClassVar[tuple[str, ...]] = ("kv_inject", "concatenate", "none")
    """What is merged."""

    policies: ClassVar[tuple[str, ...]] = ("auto", "discard", "preserve")
    """What the engine may do with KV of BLOCKED sequences."""

    budgets: ClassVar[tuple[int | None, ...]] = (None,)
    """How many tokens a tree may sample."""

    most_sequences: ClassVar[tuple[int | None, ...]] = (None,)
    """How many sequences a tree may have."""

    prefixes: ClassVar[tuple[tuple[int, ...], ...]] = ((),)
    """The prefixes of children that have all of their parent's context."""

    handlers: ClassVar[tuple[dict[int, str], ...]] = ({},)
    """Handlers of further tokens, see `mytests.fuzz.handlers.REPLACING`."""

    engine: SteppedEngine[Any]

    def __init_subclass__(cls) -> None:
        cls.seen = Counter()

    @abstractmethod
    def make_engine(self, hooks: dict[str, Any], draw: Draw) -> SteppedEngine[Any]:
        """An engine with little of everything; ``hooks`` are the fields of its `SpecialKwargs`."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        def draw(*choices: Any) -> Any:
            return data.draw(st.sampled_from(choices))

        self.engine = self.make_engine(self._draw_hooks(draw), draw)
        self.reference = Reference(self.engine.special_kwargs, self.engine.max_model_len)
        self.roots: list[str] = []
        self.aborted: set[str] = set()
        self.trees: dict[str, Branch[Any]] = {}
        """The roots of all trees that have begun."""

        self._watch_trees()
        self.idle_steps = 0

    @precondition(lambda self: len(self.queued()) < MAX_QUEUED)
    @rule(
        length=st.integers(1, 30),
        letter=st.sampled_from("pq"),
        max_tokens=st.sampled_from([100, 20, 5]),
        priority=st.integers(0, 2),
        adapter=st.integers(0, 3),
        end_at_join=st.sampled_from([False, False, True]),
    )
    def add(self, length: int, letter: str, max_tokens: int, priority: int, adapter: int, end_at_join: bool) -> None:
        """Adds a request; there are few letters, so that prefixes are alike."""
        name, prompt = f"r{len(self.roots)}", letter * min(length, self.engine.max_model_len - 1)
        self.roots.append(name)
        self.reference.add(name, len(prompt), max_tokens, end_at_join)
        params: dict[str, Any] = {"max_tokens": max_tokens, "extra_args": {"end_at_join": end_at_join}}
        self.engine.add(name, prompt, priority, adapter if self.engine.max_loras else 0, **params)

    @precondition(lambda self: self.roots)
    @rule(tokens=st.lists(TOKENS, min_size=5, max_size=5))
    def step(self, tokens: list[int]) -> None:
        """Takes one step, in which each sequence that samples gets the next of the tokens, from the first one again."""
        self._step(cycle(tokens).__next__)

    @precondition(lambda self: self.roots)
    @rule(steps=st.integers(2, 12))
    def decode(self, steps: int) -> None:
        """Takes steps of ordinary tokens, which fill blocks."""
        for _ in range(steps):
            self._step(lambda: ord("x"))

    @precondition(lambda self: self.queued())
    @rule(index=st.integers(0, 63))
    def abort(self, index: int) -> None:
        places = [(name, queue) for queue, names in self.engine.queues().items() for name in names]
        name, queue = places[index % len(places)]
        depths = {branch.request_id: branch.depth for branch in self.engine.driver.trees.branches}
        self.seen[f"abort {queue} at depth {depths.get(name, 0)}"] += 1
        if name in self.roots:
            self.aborted.add(name)
        self.engine.abort(name)

    @precondition(lambda self: self.engine.awaiting())
    @rule(index=st.integers(0, 63), text=st.sampled_from(["", "r", "rs" * 10]))
    def resume(self, index: int, text: str) -> None:
        waiting = self.engine.awaiting()
        self._resume(waiting[index % len(waiting)], text)

    @precondition(lambda self: self.engine.blocked_with_kv())
    @rule(index=st.integers(0, 63))
    def evict(self, index: int) -> None:
        """Lets a BLOCKED sequence give up its KV, and not only for want of blocks."""
        names = self.engine.blocked_with_kv()
        self.engine.evict(names[index % len(names)])
        self.seen["gave up its KV"] += 1

    @invariant()
    def books_add_up(self) -> None:
        """Trees, queues and blocks are consistent, and each unfinished sequence is in one queue."""
        self.engine.check_integrity()
        assert sorted(self.queued()) == sorted(self._unfinished())
        running = self.engine.queues()["running"]
        assert len(running) <= self.engine.max_num_seqs
        limit = self.engine.special_kwargs.max_running_children
        children = Counter(name.split("_child_")[0] for name in running if "_child_" in name)
        assert limit is None or all(number <= limit for number in children.values())

    def teardown(self) -> None:
        """All unfinished sequences come to their end, and leave nothing."""
        if not hasattr(self, "engine"):
            return
        for _ in range(400):
            if not self.engine.has_unfinished():
                break
            for name in self.engine.awaiting():
                self._resume(name, "")
            self._step(lambda: EOS)
        self.engine.assert_empty()
        for tree in self.trees.values():
            self.check_budget(tree)
        for branch in (branch for root in self.trees.values() for branch in root.subtree()):
            self.seen[f"ended as {branch.outcome}"] += 1
            self.seen["ended at a join"] += branch.finished_at_join
            self.seen["ended at its first join"] += branch.finished_at_join and branch.stops_at_first_join
            self.seen["ended without children"] += branch.outcome is not None and branch.wait.join_when == 0
            self.seen["waited by name"] += branch.wait.numbers is not None
            self.seen[f"cancelled as {branch.outcome}"] += branch.is_cancelled
            self.seen[f"cancelled at depth {branch.depth}"] += branch.is_cancelled
            self.seen[f"replaced at depth {branch.depth}"] += bool(branch.num_replaced)
        for name in self.roots:
            # A request that is aborted is forgotten as a whole.
            if name not in self.aborted:
                self.check_output(name)
        self.seen["injected"] += self.engine.num_injected()

    def check_output(self, name: str) -> None:
        """A finished request has what its tree comes to."""
        completion = finished(self.engine, name)
        self.seen["assembled"] += completion.sampled is not None
        sampled = completion if completion.sampled is None else completion.sampled
        tree = self.trees.get(name)
        assert list(sampled.token_ids) == self.reference.output(name, tree)
        if tree is not None and not tree.tree.has_used_up and not tree.num_replaced:
            self.check_positions(tree)

    def check_positions(self, tree: Branch[Any]) -> None:
        """The context of a request has the positions that follow from its tree; what it got at its end has none."""
        expected = self.reference.positions(tree.request_id, tree)
        if tree.finished_at_join and tree.joins:
            del expected[len(tree.sequence.prompt_token_ids) + tree.joins[-1].position :]
        assert [tree.positions.of(index) for index in range(len(expected))] == expected
        self.seen["overlapping"] += expected != sorted(set(expected))

    def check_budget(self, root: Branch[Any]) -> None:
        """A tree has sampled no more than it may."""
        most, num_sampled = root.tree.limits.max_tree_tokens, root.num_sampled_below
        assert most is None or num_sampled <= most
        assert root.tree.has_used_up == (num_sampled == most)
        self.seen["used up"] += root.tree.has_used_up
        for branch in root.subtree() if root.tree.has_used_up else ():
            self.seen[f"used up at depth {branch.depth}"] += 1
            self.seen["used up without a token"] += not branch.sequence.output_token_ids
        self.seen["too many sequences"] += "max_tree_sequences" in root.tree.limits_met

    def queued(self) -> list[str]:
        return [name for names in self.engine.queues().values() for name in names]

    def statuses(self) -> dict[str, str]:
        """The statuses to compare before and after a step, by request id."""
        return self.engine.statuses()

    def look(self, before: dict[str, str]) -> None:
        """Note what a step has done; ``before`` are the statuses before it."""
        for name, now in self.statuses().items():
            if before.get(name, now) != now:
                self.seen[f"{before[name]} to {now}"] += 1

    def _draw_hooks(self, draw: Draw) -> dict[str, Any]:
        children = draw(1, 2, 3)
        strategy = draw(*self.strategies)
        injects, block_on = strategy == "kv_inject", draw(*self.block_on)
        block_on = "sync" if injects and block_on == "never" else block_on
        # Only children that see their parent have KV that can be injected.
        context = draw("parent", *(["before_trigger", "none"] if not injects or draw(False, False, True) else []))
        return {
            "promise_token_id": PROMISE,
            "sync_token_id": SYNC,
            "block_on": block_on,
            "join_when": None if block_on == "never" else draw(None, None, 1, 2),
            "unjoined_at_end": "join" if block_on == "never" else draw("join", "join", "cancel"),
            "child_context": context,
            "child_prefix_token_ids": draw(*self.prefixes) if context == "parent" else (CHILD,),
            "sync_resume": draw("auto", "manual"),
            "max_child_depth": draw(3, 2, 1, 0),
            "children_per_promise": children,
            "max_children": draw(*range(children, 9)),
            "max_tree_tokens": draw(*self.budgets),
            "max_tree_sequences": draw(*self.most_sequences),
            "child_merge_strategy": strategy,
            "position_rule": draw("overlap", "sequential") if injects else "sequential",
            "blocked_kv_policy": draw(*self.policies),
            "max_running_children": draw(None, None, 1, 3),
            "handlers": {**HANDLERS, **draw(*self.handlers)},
        }

    def _step(self, draw_token: Callable[[], int]) -> None:
        before = self.statuses()
        scheduled = self.engine.step(lambda sampling: self.reference.feed(sampling, draw_token))
        waits = self.engine.is_waiting_for_callers() or self.is_transferring() or not self.engine.has_unfinished()
        self.idle_steps = 0 if scheduled or waits else self.idle_steps + 1
        assert self.idle_steps <= MAX_IDLE_STEPS, self.engine.statuses()
        self.look(before)

    def is_transferring(self) -> bool:
        """Whether blocks are free, or have their KV, only once a connector has done its part."""
        return False

    def _watch_trees(self) -> None:
        """Note each tree where it begins: with several tokens in a step, it may end in the same one."""
        trees: Any = self.engine.driver.trees
        add_root = trees.add_root

        def noted(*args: Any) -> Any:
            root = add_root(*args)
            self.trees[root.request_id] = root
            return root

        trees.add_root = noted

    def _resume(self, name: str, text: str) -> None:
        text = text[: self.engine.room_to_resume(name)]
        self.reference.give(name, ids(text))
        self.engine.resume(name, text)
        self.seen["resumed"] += 1

    def _unfinished(self) -> Iterator[str]:
        """The ids of all sequences that have neither ended nor were aborted."""
        for name in self.roots:
            if name in self.trees:
                yield from (each.request_id for each in self.trees[name].subtree() if each.phase != "finished")
            elif name not in self.aborted and not (name in self.engine.outputs and self.engine.outputs[name].finished):
                yield name


def walk(machine: type[Walks], num_walks: int, share: float) -> None:
    """Take random walks: all invariants hold, and they reach what they must, or a ``share`` of it."""
    machine.seen.clear()
    health_checks = list(HealthCheck)
    run_walks(
        machine,
        settings=settings(max_examples=num_walks, deadline=None, derandomize=True, suppress_health_check=health_checks),
    )
    missing = {name for name in machine.must_arise if not machine.seen[name]}
    assert len(missing) <= (1 - share) * len(machine.must_arise), f"none has reached {sorted(missing)}: {machine.seen}"
