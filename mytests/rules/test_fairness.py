# SPDX-License-Identifier: Apache-2.0
"""Whatever one client sends, others are served: rows are shared out among requests, not among sequences."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.exploding import BOMB, NUM_ORDINARY, abort_all, exploding, steps_of
from mytests.harness.stepped import Sampling
from mytests.harness.surgical import EOS, HOOKS, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, finished, plan, tree
from sequence_hooks.admission.patience import STEPS_OF_PATIENCE, STEPS_OF_PATIENCE_FOR_KV

WAVES = dataclasses.replace(SYNC_HOOKS, children_per_promise=6)
ROOM: dict[str, Any] = {"max_model_len": 512, "num_blocks": 2000}
SOON = STEPS_OF_PATIENCE + 3
"""Steps within which a request is admitted, and its step is processed."""


def running(engine: Any, request_id: str) -> list[str]:
    """The sequences of a request that run."""
    return [name for name in engine.queues()["running"] if name.split("_")[0] == request_id]


def filled(hooks: Any, priority: int = 0, **sizes: Any) -> Any:
    """An engine whose eight rows a request "r" has filled with its children."""
    engine = SurgicalEngine(hooks, max_num_seqs=8, **ROOM, **sizes)
    engine.add("r", priority=priority)
    engine.run_until(lambda: len(engine.queues()["running"]) == 8, exploding("r"))
    return engine


def children_running(engine: Any) -> list[str]:
    """The children that run, of all requests."""
    return [name for name in engine.queues()["running"] if "_child_" in name]


@pytest.mark.rule(1)
class TestNewRequests:
    @pytest.mark.parametrize(("num_new", "num_left"), [(1, 7), (5, 3)])
    def test_one_is_admitted_beside_a_full_batch_of_children(self, num_new: int, num_left: int) -> None:
        """It takes the row of a child: the tree with the most rows gives its newest ones back, up to its first."""
        engine, names = filled(BOMB), [f"s{number}" for number in range(num_new)]
        for name in names:
            engine.add(name)
        engine.run_until(lambda: all(running(engine, name) for name in names), exploding("r"), max_steps=SOON)
        assert len(running(engine, "r")) == num_left
        abort_all(engine, "r", *names)

    def test_one_takes_as_many_steps_as_without_hooks(self) -> None:
        """At most four times as many, beside a request whose every token spawns four children, down to depth 3."""
        steps = []
        for hooks in (True, False):
            engine = SurgicalEngine(BOMB, max_num_seqs=8, **ROOM)
            engine.add("r", extra_args={"hooks": hooks}, max_tokens=400)
            for _ in range(30):
                engine.step(exploding("r"))
            steps.append(steps_of(engine, "s", exploding("r")))
            abort_all(engine, "r")
        assert steps[0] <= 4 * steps[1]

    def test_one_is_served_where_kv_is_short(self) -> None:
        """It has more patience, and once it runs the children of the other tree are preempted for each other."""
        engine = SurgicalEngine(WAVES, max_num_seqs=7, num_blocks=40, max_model_len=128)
        engine.add("r")

        def choose(sampling: Sampling) -> int:
            if sampling.request_id == "s":
                return EOS if sampling.num_sampled == 40 else ord("y")
            return PROMISE if sampling.request_id == "r" and sampling.num_sampled == 0 else ord("x")

        engine.run_until(lambda: len(running(engine, "r")) == 7, choose)
        assert steps_of(engine, "s", choose) <= 40 + STEPS_OF_PATIENCE_FOR_KV + 2 * SOON
        assert engine.num_preemptions() > 2
        abort_all(engine, "r")

    def test_one_gets_the_kv_of_a_sequence_that_waits(self) -> None:
        """Before it takes the row of a child, which would not be enough; what gave it up computes it again."""
        hooks = dataclasses.replace(HOOKS, child_context="none", child_prefix_token_ids=(ord("p"),))
        engine = SurgicalEngine(hooks, max_num_seqs=4, num_blocks=45, max_model_len=110)
        engine.add("r", prompt="r" * 92)

        script = plan(**tree("!", "x" * 100), s="")
        engine.run_until(lambda: "r_child_0" in running(engine, "r"), script)
        engine.add("s", prompt="s" * 100)
        engine.run_until(lambda: "s" in engine.outputs, script, max_steps=STEPS_OF_PATIENCE_FOR_KV + 2 * SOON)
        assert children_running(engine) == ["r_child_0"] and engine.num_preemptions() == 0
        engine.run_until(engine.is_idle, script)
        assert finished(engine, "s").finish_reason == "stop"
        engine.assert_empty()

    def test_a_preempted_child_samples_what_it_would_have(self) -> None:
        """It goes on where it was, before its younger siblings."""
        engine = SurgicalEngine(WAVES, max_num_seqs=4, **ROOM)
        engine.add("r")
        text, begun = "bcdefghijklmnopqrstu", list[str]()

        script = plan(**tree("!", *[text] * 6), s=text)
        engine.run_until(lambda: len(engine.queues()["running"]) == 4, script)
        engine.add("s")
        while not engine.is_idle():
            engine.step(script)
            begun += [name for name in sorted(children_running(engine)) if name not in begun]
        assert finished(engine, "r").text == "\n".join([text] * 6)
        assert finished(engine, "s").text == text
        assert begun == [f"r_child_{number}" for number in range(6)]
        assert engine.num_preemptions() == 1
        engine.assert_empty()

    def test_as_many_trees_as_rows_take_turns_with_one(self) -> None:
        """Each has one row, and after two children of each it is admitted, though hundreds are waiting."""
        engine = SurgicalEngine(dataclasses.replace(WAVES, max_children=60), max_num_seqs=2, **ROOM)
        for name in "rt":
            engine.add(name)

        script = plan(**tree("!" * 10, *["xxx"] * 60), **tree("!" * 10, *["xxx"] * 60, name="t"), s="xxx")
        engine.run_until(lambda: engine.statuses().get("r") == engine.statuses().get("t") == "BLOCKED", script)
        engine.add("s")
        begun: set[str] = set()
        for _ in range(40):
            if running(engine, "s"):
                break
            engine.step(script)
            begun |= set(children_running(engine))
        assert running(engine, "s")
        assert len(begun) <= 6
        engine.run(script, max_steps=1000)

    @pytest.mark.parametrize("num_blocks", [40, 60, 90])
    def test_one_takes_kv_that_others_only_hold(self, num_blocks: int) -> None:
        """What BLOCKED sequences share with children that have yet to begin; those that run go on for long."""
        engine = SurgicalEngine(BOMB, max_num_seqs=16, num_blocks=num_blocks, max_model_len=2 * num_blocks)
        for name in "rtuv":
            engine.add(name)

        def choose(sampling: Sampling) -> int:
            may_spawn = sampling.request_id.count("_child_") < 3 and sampling.request_id != "s"
            if may_spawn and sampling.num_sampled < 2:
                return (PROMISE, SYNC)[sampling.num_sampled]
            return EOS if sampling.request_id == "s" and sampling.num_sampled == NUM_ORDINARY else ord("x")

        for _ in range(20):
            engine.step(choose)
        assert steps_of(engine, "s", choose) <= STEPS_OF_PATIENCE_FOR_KV + 3 * NUM_ORDINARY
        abort_all(engine, *"rtuv")


class TestTrees:
    @pytest.mark.rule(1)
    @pytest.mark.parametrize("num_blocks", [40, 60, 90])
    @pytest.mark.parametrize("merge", ["concatenate", "kv_inject"])
    def test_none_waits_forever_where_kv_is_short(self, num_blocks: int, merge: Any) -> None:
        """Two trees of depth 3, with ordinary requests, in a pool that holds a few sequences: all come to their end."""
        hooks = dataclasses.replace(BOMB, child_merge_strategy=merge, max_tree_tokens=60, children_per_promise=2)
        engine = SurgicalEngine(hooks, max_num_seqs=8, num_blocks=num_blocks, max_model_len=128)
        for name in ("r", "s", "t", "u"):
            engine.add(name)
        engine.run(exploding("r", "t", length=4), max_steps=3000)
        assert all(engine.outputs[name].finished for name in "rstu")


class TestPriority:
    @pytest.mark.rule(1)
    @pytest.mark.parametrize(("priority", "is_let_in"), [(0, True), (1, True), (2, False)])
    def test_an_urgent_tree_keeps_its_rows(self, priority: int, is_let_in: bool) -> None:
        """A less urgent request waits, however many rows the tree has; one that is as urgent is let in."""
        engine = filled(BOMB, priority=1, scheduling_policy="priority")
        engine.add("s", priority=priority)
        for _ in range(SOON if is_let_in else 2 * SOON):
            engine.step(exploding("r"))
            if running(engine, "s"):
                break
        assert bool(running(engine, "s")) == is_let_in
        assert len(running(engine, "r")) == 8 - is_let_in
        abort_all(engine, "r", "s")


@pytest.mark.rule(1)
class TestRunningChildren:
    @pytest.mark.parametrize("limit", [1, 2, 5])
    @pytest.mark.parametrize("merge", ["concatenate", "kv_inject"])
    @pytest.mark.parametrize("is_own", [True, False])
    def test_so_many_run_at_once(self, limit: int, merge: Any, is_own: bool) -> None:
        """At every step, at all depths; BLOCKED ones do not count, so with depth 3 and a limit of 1 all have ended."""
        limits: dict[str, Any] = {"max_running_children": None if is_own else limit, "max_tree_tokens": 60}
        hooks = dataclasses.replace(BOMB, child_merge_strategy=merge, children_per_promise=2, **limits)
        engine = SurgicalEngine(hooks, max_num_seqs=16, **ROOM)
        engine.add("r", extra_args={"max_running_children": limit} if is_own else None)
        most = 0
        for _ in range(3000):
            if engine.is_idle():
                break
            engine.step(exploding("r", length=4))
            most = max(most, len(children_running(engine)))
        assert most == limit and finished(engine, "r").children
        assert max(child.request_id.count("_child_") for child in _descendants(finished(engine, "r").children)) == 3
        engine.assert_empty()

    def test_the_others_wait_in_spawn_order_while_the_parent_goes_on(self) -> None:
        """The next one begins when one has ended; another tree has as many."""
        engine = SurgicalEngine(dataclasses.replace(WAVES, max_running_children=2), **ROOM)
        for name in "rt":
            engine.add(name)

        def choose(sampling: Sampling) -> int:
            if "_" not in sampling.request_id:
                return PROMISE if sampling.num_sampled == 0 else ord("x")
            return EOS if sampling.num_sampled == 3 else ord("y")

        begun: list[str] = []
        for _ in range(40):
            engine.step(choose)
            begun += [name for name in sorted(children_running(engine)) if name not in begun]
            assert engine.statuses()["r"] == "RUNNING"
            assert max(len(running(engine, name)) for name in "rt") <= 3
        for name in "rt":
            assert [each for each in begun if each[0] == name] == [f"{name}_child_{number}" for number in range(6)]
        abort_all(engine, "r", "t")


def _descendants(children: Any) -> list[Any]:
    return [each for child in children for each in [child, *_descendants(child.children)]]
