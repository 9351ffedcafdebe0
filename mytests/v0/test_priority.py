# SPDX-License-Identifier: Apache-2.0
"""``scheduling_policy="priority"``: urgent requests are admitted first, preempted last, and give up KV last."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.async_steps import AsyncEngine, script
from mytests.harness.surgical import HOOKS, SurgicalEngine, finished
from mytests.harness.v0.groups import child_of
from mytests.harness.v0.scenes import MANUAL, Scene, engine_with_kv

LOW, MIDDLE, URGENT = 9, 5, 0
TWO = dataclasses.replace(HOOKS, children_per_promise=2)
TIGHT: dict[str, Any] = {"num_blocks": 6, "max_model_len": 24}


def prioritized(hooks: Any = HOOKS, policy: str = "auto", **sizes: Any) -> SurgicalEngine:
    return engine_with_kv(hooks, policy, scheduling_policy="priority", **sizes)


def texts_of(engine: SurgicalEngine, names: str) -> list[str]:
    return [finished(engine, name).text for name in names]


class TestSlots:
    @pytest.mark.parametrize(("policy", "order"), [("priority", "urs"), ("fcfs", "rsu")])
    def test_an_urgent_request_takes_the_slot_of_a_low_one(self, policy: str, order: str) -> None:
        """It also overtakes a low one that is waiting."""
        engine = engine_with_kv(HOOKS, max_num_seqs=1, scheduling_policy=policy)
        scene = Scene(engine, r="aaaa", s="bbbb", u="cc")
        scene.happen(("r", 6, LOW), 1, ("s", 6, LOW), ("u", 6, URGENT))
        assert scene.end() == order
        assert texts_of(engine, "rsu") == ["aaaa", "bbbb", "cc"]

    @pytest.mark.parametrize(("length", "num_missing"), [(12, 0), (16, 1), (20, 2)])
    def test_what_a_request_lacks_is_counted_in_blocks(self, length: int, num_missing: int) -> None:
        """Those of its whole prompt, less the free ones."""
        engine = prioritized(num_blocks=8, max_model_len=32)
        Scene(engine).happen(("r", 20, LOW), 1)
        assert engine.num_free_blocks() == 3
        assert engine.scheduler._num_missing(engine.add("u", "p" * length, URGENT)) == num_missing

    def test_the_least_urgent_gives_way(self) -> None:
        """It is preempted though it came first, but not for an equally urgent request."""
        scene = Scene(prioritized(max_num_seqs=2))
        statuses = scene.happen(("r", 6, LOW), ("s", 6, MIDDLE), 1, ("t", 6, MIDDLE), 1)
        assert statuses == {"r": "WAITING", "s": "RUNNING", "t": "RUNNING"}
        assert scene.happen(("u", 6, MIDDLE), 1) == statuses | {"u": "WAITING"}
        scene.end()

    def test_an_urgent_child_takes_the_slot_of_a_low_request(self) -> None:
        """A tree is as urgent as its request."""
        scene = Scene(prioritized(TWO, max_num_seqs=2), u="!")
        statuses = scene.happen(("u", 6, URGENT), ("r", 6, LOW), 3)
        assert statuses == {"u": "BLOCKED", "u_child_0": "RUNNING", "u_child_1": "RUNNING", "r": "WAITING"}
        scene.end()

    def test_an_urgent_request_is_let_in_before_low_children(self) -> None:
        """Otherwise children go before all new requests."""
        scene = Scene(prioritized(TWO, max_num_seqs=2), r="!")
        scene.happen(("r", 6, LOW), 1, ("u", 6, URGENT), ("s", 6, LOW), 1)
        assert scene.engine.queues()["running"] == ["u"]
        scene.happen(1)
        assert scene.engine.queues()["running"] == ["u", "r_child_0"]
        scene.end()

    def test_a_low_child_keeps_what_it_shares(self) -> None:
        """It gives its slot to an urgent request, and recomputes only its own tokens."""
        engine = prioritized(max_num_seqs=1)
        scene, group = Scene(engine, r="!z", r_child_0="BC", u="d"), engine.add("r", "r" * 8, LOW)
        assert scene.happen(2, ("u", 6, URGENT), 1) == {"u": "RUNNING", "r": "BLOCKED", "r_child_0": "WAITING"}
        assert engine.block_table(child_of(group)) == engine.block_table(group)[:2]
        assert scene.end() == "ur"
        assert finished(engine).text == "BCz"

    def test_an_adapters_slot_is_taken_from_all_who_use_it(self) -> None:
        """This holds if they are all less urgent; groups without an adapter go on."""
        scene = Scene(prioritized(max_loras=2))
        scene.happen(("a", 6, MIDDLE, 1), ("b", 6, LOW, 2), ("c", 6, LOW, 2), ("d", 6, LOW, 0), ("e", 6, URGENT, 1), 1)
        scene.happen(("u", 6, URGENT, 3), 1)
        assert sorted(scene.engine.queues()["running"]) == ["a", "d", "e", "u"]
        assert scene.engine.num_preemptions() == 2
        assert scene.happen(("v", 6, URGENT, 4), 1)["v"] == "WAITING"
        scene.end()


class TestBlocks:
    def test_the_least_urgent_is_preempted_first(self) -> None:
        """The urgent request keeps its blocks though it came last."""
        scene = Scene(prioritized(**TIGHT), r="a" * 10, u="b" * 10)
        scene.happen(("r", 8, LOW), ("u", 8, URGENT))
        assert scene.end() == "ur"
        assert scene.engine.num_preemptions() == 1
        assert texts_of(scene.engine, "ru") == ["a" * 10, "b" * 10]

    def test_an_urgent_request_takes_blocks_of_a_low_one_that_runs(self) -> None:
        """Its prompt would not fit otherwise."""
        scene = Scene(prioritized(**TIGHT), r="a" * 6, u="bb")
        scene.happen(("r", 14, LOW), 1, ("u", 12, URGENT))
        assert scene.end() == "ur"

    @pytest.mark.parametrize("policy", ["discard", "preserve"])
    def test_a_running_group_that_is_less_urgent_is_preempted_before_a_blocked_one_gives_up_kv(
        self, policy: str
    ) -> None:
        """The urgent parent resumes with all of its KV."""
        engine = prioritized(MANUAL, policy, num_blocks=8, max_model_len=32)
        scene = Scene(engine, u=".z", r="a" * 14, s="b" * 6)
        scene.happen(("u", 12, URGENT), 1, ("r", 4, LOW), ("s", 4, MIDDLE))
        engine.run_until(engine.is_waiting_for_callers, scene.tokens)
        assert engine.num_preemptions() > 0
        scene.happen("u")
        scene.end()
        assert finished(engine, "u").joins[0].num_prefill == 1
        assert texts_of(engine, "urs") == ["z", "a" * 14, "b" * 6]

    def test_a_less_urgent_blocked_one_gives_up_kv_first(self) -> None:
        """Of two it is evicted first, though that wastes more."""
        engine = prioritized(MANUAL, "discard", num_blocks=8, max_model_len=32)
        scene = Scene(engine, u=".z", r=".z", t="aaa")
        scene.happen(("u", 4, MIDDLE), ("r", 16, LOW), 1, ("t", 12, URGENT))
        engine.run_until(engine.is_waiting_for_callers, scene.tokens)
        scene.happen("u", "r")
        scene.end()
        assert finished(engine, "u").joins[0].num_prefill == 1 < finished(engine, "r").joins[0].num_prefill

    def test_a_tree_of_which_nobody_runs_gives_up_all_that_it_shares(self) -> None:
        """Evicting one of its sequences alone would free nothing."""
        scene = Scene(prioritized(TWO, num_blocks=8, max_num_seqs=1), r="!")
        assert scene.happen(("r", 14, LOW), 1, ("u", 22, URGENT), 1)["u"] == "RUNNING"
        scene.end()

    def test_an_urgent_blocked_one_gives_up_kv_where_nobody_can_go_on_otherwise(self) -> None:
        """It waits for a caller, who may wait for the low request."""
        scene = Scene(prioritized(MANUAL, **TIGHT), u=".z", r="aa")
        scene.happen(("u", 12, URGENT), 1, ("r", 16, LOW))
        scene.engine.run_until(scene.engine.is_waiting_for_callers, scene.tokens)
        assert finished(scene.engine, "r").text == "aa"
        scene.happen("u")
        assert scene.end() == "u"


class TestSwapped:
    def test_a_swapped_low_group_comes_back_after_the_urgent(self) -> None:
        """Otherwise it would take back the blocks for which it was swapped out."""
        scene = Scene(prioritized(**TIGHT, num_cpu_blocks=6), r="a" * 6, u="bbb")
        assert scene.happen(("r", 14, LOW), 1, ("u", 12, URGENT), 1) == {"u": "RUNNING", "r": "SWAPPED"}
        assert scene.end() == "ur"
        assert scene.engine.num_preemptions() == 1

    def test_an_urgent_swapped_group_takes_blocks_from_a_low_one(self) -> None:
        """No low request is admitted before it."""
        scene = Scene(prioritized(**TIGHT, num_cpu_blocks=12), m="a" * 8, u="bb", r="c" * 9)
        swapped = {"u": "RUNNING", "m": "SWAPPED"}
        assert scene.happen(("m", 12, MIDDLE), 1, ("u", 16, URGENT), 1) == swapped
        assert scene.happen(("r", 4, LOW), 1) == swapped | {"r": "WAITING"}
        assert scene.end() == "umr"

    def test_an_urgent_swapped_group_comes_back_before_a_low_child(self) -> None:
        """The child waits with a block table."""
        engine = prioritized(TWO, max_num_seqs=1, num_cpu_blocks=12)
        scene = Scene(engine, r="!", m="bbbb", u="cc", r_child_0="AAAA", r_child_1="BB")
        low = {"r": "BLOCKED", "r_child_0": "SWAPPED", "r_child_1": "WAITING"}
        statuses = scene.happen(("r", 6, LOW), 2, ("m", 6, MIDDLE), 2, ("u", 6, URGENT), 2)
        assert statuses == low | {"m": "SWAPPED", "u": "RUNNING"}
        assert scene.happen(2) == low | {"m": "RUNNING"}
        assert scene.end() == "mr"

    @pytest.mark.parametrize("num_blocks", [6, 7, 8, 10])
    @pytest.mark.parametrize("length", [16, 20])
    def test_no_more_children_come_back_than_may_run(self, num_blocks: int, length: int) -> None:
        """Nor does another one begin in the same step."""
        hooks = dataclasses.replace(TWO, max_running_children=1)
        engine = prioritized(hooks, num_blocks=num_blocks, max_model_len=24, num_cpu_blocks=12)
        scene = Scene(engine, r="!z", u="bbbbb", r_child_0="A" * 12, r_child_1="B" * 9)
        scene.happen(("r", 7, LOW), 8, ("u", length, URGENT))
        seen: set[str] = set()
        while engine.has_unfinished():
            children = [status for name, status in scene.happen(1).items() if "_child_" in name]
            assert children.count("RUNNING") <= 1
            seen.update(children)
        assert "SWAPPED" in seen
        engine.assert_empty()


class TestAsynchronousOutput:
    @pytest.mark.parametrize(
        ("low", "order", "num_preemptions"),
        [
            pytest.param("aaaa", "ur", 1, id="the-latest-token-of-the-preempted-is-not-lost"),
            pytest.param("a", "ru", 0, id="one-that-has-ended-with-it-is-not-preempted"),
        ],
    )
    def test_a_pending_token_is_processed_before_its_sequence_is_preempted(
        self, low: str, order: str, num_preemptions: int
    ) -> None:
        """If it ends the sequence, that frees its slot and blocks itself."""
        engine, tokens = AsyncEngine(HOOKS, max_num_seqs=1, scheduling_policy="priority"), script(r=low, u="bb")
        engine.surgical.add("r", priority=LOW)
        for _ in range(2):
            engine.step(tokens)
        engine.surgical.add("u", priority=URGENT)
        engine.run(tokens)
        found = {output.request_id: output.outputs[0].text for output in engine.outputs if output.finished}
        assert (found, "".join(found)) == ({"r": low, "u": "bb"}, order)
        assert engine.surgical.num_preemptions() == num_preemptions
