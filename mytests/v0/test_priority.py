# SPDX-License-Identifier: Apache-2.0
"""``scheduling_policy="priority"``: urgent requests are admitted first, preempted last, and give up KV last.

0 is the most urgent. A tree has the priority of its request.
"""

import dataclasses
from typing import Any

import pytest

from mytests.harness.async_steps import AsyncEngine, script
from mytests.harness.surgical import EOS, HOOKS, PROMISE, SYNC, SurgicalEngine, finished, plan
from mytests.harness.v0.groups import child_of
from mytests.harness.v0.variants import MANUAL, engine_with_kv
from vllm.sequence import SequenceGroup

LOW, MIDDLE, URGENT = 9, 5, 0


def engine_with_priorities(hooks: Any = HOOKS, policy: str = "auto", **sizes: Any) -> SurgicalEngine:
    return engine_with_kv(hooks, policy, scheduling_policy="priority", **sizes)


def _name(group: SequenceGroup) -> str:
    return group.request_id


def ends(engine: SurgicalEngine, tokens: Any) -> list[str]:
    """The ids of requests in the order in which they end; afterwards the engine is empty."""
    order: list[str] = []
    while engine.scheduler.has_unfinished_seqs():
        engine.step(tokens)
        order += [output.request_id for output in engine.handed_out if output.finished]
    engine.assert_empty()
    return order


class TestSlots:
    @pytest.mark.parametrize(("policy", "order"), [("priority", "urs"), ("fcfs", "rsu")])
    def test_an_urgent_request_takes_the_slot_of_a_low_one(self, policy: str, order: str) -> None:
        """It also overtakes a low one that is waiting."""
        engine = engine_with_kv(HOOKS, max_num_seqs=1, scheduling_policy=policy)
        tokens = plan(r="aaaa", s="bbbb", u="cc")
        engine.add("r", priority=LOW)
        engine.step(tokens)
        engine.add("s", priority=LOW)
        engine.add("u", priority=URGENT)
        assert ends(engine, tokens) == list(order)
        assert [finished(engine, name).text for name in "rsu"] == ["aaaa", "bbbb", "cc"]

    @pytest.mark.parametrize(("length", "num_missing"), [(12, 0), (16, 1), (20, 2)])
    def test_what_a_request_lacks_is_counted_in_blocks(self, length: int, num_missing: int) -> None:
        """Those of its whole prompt, less the free ones."""
        engine = engine_with_priorities(num_blocks=8, max_model_len=32)
        engine.add("r", prompt="p" * 20, priority=LOW)
        engine.step({})
        assert engine.num_free_blocks() == 3
        assert engine.scheduler._num_missing(engine.add("u", prompt="p" * length, priority=URGENT)) == num_missing

    def test_the_least_urgent_gives_way(self) -> None:
        """It is preempted though it came first, but not for an equally urgent request."""
        engine = engine_with_priorities(max_num_seqs=2)
        engine.add("r", priority=LOW)
        engine.add("s", priority=MIDDLE)
        engine.step({})
        engine.add("t", priority=MIDDLE)
        engine.step({})
        assert engine.statuses() == {"r": "WAITING", "s": "RUNNING", "t": "RUNNING"}
        engine.add("u", priority=MIDDLE)
        engine.step({})
        assert engine.statuses() == {"u": "WAITING", "r": "WAITING", "s": "RUNNING", "t": "RUNNING"}
        engine.run(lambda group: EOS)
        engine.assert_empty()

    def test_an_urgent_child_takes_the_slot_of_a_low_request(self) -> None:
        """A tree is as urgent as its request."""
        engine = engine_with_priorities(dataclasses.replace(HOOKS, children_per_promise=2), max_num_seqs=2)
        engine.add("u", priority=URGENT)
        engine.add("r", priority=LOW)
        engine.step({"u": PROMISE})
        engine.run_until(lambda: "u_child_1" in map(_name, engine.scheduler.running), {})
        assert engine.statuses() == {"u": "BLOCKED", "u_child_0": "RUNNING", "u_child_1": "RUNNING", "r": "WAITING"}
        engine.run(lambda group: EOS)
        engine.assert_empty()

    def test_an_urgent_request_is_let_in_before_low_children(self) -> None:
        """Otherwise children go before all new requests."""
        engine = engine_with_priorities(dataclasses.replace(HOOKS, children_per_promise=3), max_num_seqs=2)
        engine.add("r", priority=LOW)
        engine.step({"r": PROMISE})
        engine.add("u", priority=URGENT)
        engine.add("s", priority=LOW)
        engine.step({})
        assert list(map(_name, engine.scheduler.running)) == ["u"]
        engine.step({})
        assert list(map(_name, engine.scheduler.running)) == ["u", "r_child_0"]
        engine.run(lambda group: EOS)
        engine.assert_empty()

    def test_a_low_child_keeps_what_it_shares(self) -> None:
        """It gives its slot to an urgent request, and recomputes only its own tokens."""
        engine = engine_with_priorities(max_num_seqs=1)
        tokens = plan(r="!z", r_child_0="BC", u="d")
        group = engine.add("r", prompt="r" * 8, priority=LOW)
        for _ in range(2):
            engine.step(tokens)
        engine.add("u", priority=URGENT)
        engine.step(tokens)
        assert engine.statuses() == {"u": "RUNNING", "r": "BLOCKED", "r_child_0": "WAITING"}
        assert engine.block_table(child_of(group)) == engine.block_table(group)[:2]
        assert ends(engine, tokens) == ["u", "r"]
        assert finished(engine).text == "BCz"

    def test_an_adapters_slot_is_taken_from_all_who_use_it(self) -> None:
        """This holds if they are all less urgent; groups without an adapter go on."""
        engine = engine_with_priorities(max_loras=2)
        for name, adapter, priority in (
            ("a", 1, MIDDLE),
            ("b", 2, LOW),
            ("c", 2, LOW),
            ("d", 0, LOW),
            ("e", 1, URGENT),
        ):
            engine.add(name, adapter=adapter, priority=priority)
        engine.step({})
        engine.add("u", adapter=3, priority=URGENT)
        engine.step({})
        assert sorted(map(_name, engine.scheduler.running)) == ["a", "d", "e", "u"]
        engine.add("v", adapter=4, priority=URGENT)
        engine.step({})
        assert engine.statuses()["v"] == "WAITING"
        engine.run(lambda group: EOS)
        engine.assert_empty()


class TestBlocks:
    def test_the_least_urgent_is_preempted_first(self) -> None:
        """The urgent request keeps its blocks though it came last."""
        engine = engine_with_priorities(num_blocks=6, max_model_len=24)
        engine.add("r", prompt="r" * 8, priority=LOW)
        engine.add("u", prompt="u" * 8, priority=URGENT)
        assert ends(engine, plan(r="a" * 10, u="b" * 10)) == ["u", "r"]
        assert engine.scheduler.num_cumulative_preemption == 1
        assert [finished(engine, name).text for name in "ru"] == ["a" * 10, "b" * 10]

    def test_an_urgent_request_takes_blocks_of_a_low_one_that_runs(self) -> None:
        """Its prompt would not fit otherwise."""
        engine = engine_with_priorities(num_blocks=6, max_model_len=24)
        tokens = plan(r="a" * 6, u="bb")
        engine.add("r", prompt="r" * 14, priority=LOW)
        engine.step(tokens)
        engine.add("u", prompt="u" * 12, priority=URGENT)
        assert ends(engine, tokens) == ["u", "r"]

    @pytest.mark.parametrize("policy", ["discard", "preserve"])
    def test_a_running_group_that_is_less_urgent_is_preempted_before_a_blocked_one_gives_up_kv(
        self, policy: str
    ) -> None:
        """The urgent parent resumes with all of its KV."""
        engine = engine_with_priorities(MANUAL, policy, num_blocks=8, max_model_len=32)
        engine.add("u", prompt="u" * 12, priority=URGENT)
        engine.step({"u": SYNC})
        tokens = plan(u=".z", r="a" * 14, s="b" * 6)
        engine.add("r", prompt="r" * 4, priority=LOW)
        engine.add("s", prompt="s" * 4, priority=MIDDLE)
        engine.run_until(engine.scheduler.is_waiting_for_callers, tokens)
        assert engine.scheduler.num_cumulative_preemption > 0
        engine.processor.resume("u", "")
        engine.run(tokens)
        assert finished(engine, "u").joins[0].num_prefill == 1
        assert [finished(engine, name).text for name in "urs"] == ["z", "a" * 14, "b" * 6]
        engine.assert_empty()

    def test_a_less_urgent_blocked_one_gives_up_kv_first(self) -> None:
        """Of two it is evicted first, though that wastes more."""
        engine = engine_with_priorities(MANUAL, "discard", num_blocks=8, max_model_len=32)
        engine.add("u", prompt="u" * 4, priority=MIDDLE)
        engine.add("r", prompt="r" * 16, priority=LOW)
        engine.step(lambda group: SYNC)
        engine.add("t", prompt="t" * 12, priority=URGENT)
        engine.run_until(engine.scheduler.is_waiting_for_callers, plan(t="aaa"))
        for name in "ur":
            engine.processor.resume(name, "")
        engine.run(plan(u=".z", r=".z"))
        assert finished(engine, "u").joins[0].num_prefill == 1 < finished(engine, "r").joins[0].num_prefill
        engine.assert_empty()

    def test_a_tree_of_which_nobody_runs_gives_up_all_that_it_shares(self) -> None:
        """Evicting one of its sequences alone would free nothing."""
        engine = engine_with_priorities(
            dataclasses.replace(HOOKS, children_per_promise=2), num_blocks=8, max_num_seqs=1
        )
        engine.add("r", prompt="r" * 14, priority=LOW)
        engine.step({"r": PROMISE})
        engine.add("u", prompt="u" * 22, priority=URGENT)
        engine.step({})
        assert engine.statuses()["u"] == "RUNNING"
        engine.run(lambda group: EOS)
        engine.assert_empty()

    def test_an_urgent_blocked_one_gives_up_kv_where_nobody_can_go_on_otherwise(self) -> None:
        """It waits for a caller, who may wait for the low request."""
        engine = engine_with_priorities(MANUAL, num_blocks=6, max_model_len=24)
        engine.add("u", prompt="u" * 12, priority=URGENT)
        engine.step({"u": SYNC})
        engine.add("r", prompt="r" * 16, priority=LOW)
        engine.run_until(engine.scheduler.is_waiting_for_callers, plan(r="aa"))
        assert finished(engine, "r").text == "aa"
        engine.processor.resume("u", "")
        engine.run(plan(u=".z"))
        engine.assert_empty()


class TestSwapped:
    def test_a_swapped_low_group_comes_back_after_the_urgent(self) -> None:
        """Otherwise it would take back the blocks for which it was swapped out."""
        engine = engine_with_priorities(num_blocks=6, max_model_len=24, num_cpu_blocks=6)
        tokens = plan(r="a" * 6, u="bbb")
        engine.add("r", prompt="r" * 14, priority=LOW)
        engine.step(tokens)
        engine.add("u", prompt="u" * 12, priority=URGENT)
        engine.step(tokens)
        assert engine.statuses() == {"u": "RUNNING", "r": "SWAPPED"}
        assert ends(engine, tokens) == ["u", "r"]
        assert engine.scheduler.num_cumulative_preemption == 1

    def test_an_urgent_swapped_group_takes_blocks_from_a_low_one(self) -> None:
        """No low request is admitted before it."""
        engine = engine_with_priorities(num_blocks=6, max_model_len=24, num_cpu_blocks=12)
        tokens = plan(m="a" * 8, u="bb", r="c" * 9)
        engine.add("m", prompt="m" * 12, priority=MIDDLE)
        engine.step(tokens)
        engine.add("u", prompt="u" * 16, priority=URGENT)
        engine.step(tokens)
        assert engine.statuses() == {"u": "RUNNING", "m": "SWAPPED"}
        engine.add("r", prompt="r" * 4, priority=LOW)
        engine.step(tokens)
        assert engine.statuses() == {"u": "RUNNING", "m": "SWAPPED", "r": "WAITING"}
        assert ends(engine, tokens) == ["u", "m", "r"]

    def test_an_urgent_swapped_group_comes_back_before_a_low_child(self) -> None:
        """The child waits with a block table."""
        hooks = dataclasses.replace(HOOKS, children_per_promise=2)
        engine = engine_with_priorities(hooks, max_num_seqs=1, num_cpu_blocks=12)
        tokens = plan(r="!", m="bbbb", u="cc", r_child_0="AAAA", r_child_1="BB")
        for name, priority in ("r", LOW), ("m", MIDDLE), ("u", URGENT):
            engine.add(name, priority=priority)
            engine.step(tokens)
            engine.step(tokens)
        low = {"r": "BLOCKED", "r_child_0": "SWAPPED", "r_child_1": "WAITING"}
        assert engine.statuses() == low | {"m": "SWAPPED", "u": "RUNNING"}
        engine.step(tokens)
        engine.step(tokens)
        assert engine.statuses() == low | {"m": "RUNNING"}
        assert ends(engine, tokens) == ["m", "r"]

    @pytest.mark.parametrize("num_blocks", [6, 7, 8, 10])
    @pytest.mark.parametrize("length", [16, 20])
    def test_no_more_children_come_back_than_may_run(self, num_blocks: int, length: int) -> None:
        """Nor does another one begin in the same step."""
        hooks = dataclasses.replace(HOOKS, children_per_promise=2, max_running_children=1)
        engine = engine_with_priorities(hooks, num_blocks=num_blocks, max_model_len=24, num_cpu_blocks=12)
        tokens = plan(r="!z", u="bbbbb", r_child_0="A" * 12, r_child_1="B" * 9)
        engine.add("r", prompt="r" * 7, priority=LOW)
        for _ in range(8):
            engine.step(tokens)
        engine.add("u", prompt="u" * length, priority=URGENT)
        was_swapped = False
        while engine.scheduler.has_unfinished_seqs():
            engine.step(tokens)
            children = [status for name, status in engine.statuses().items() if "_child_" in name]
            assert children.count("RUNNING") <= 1
            was_swapped |= "SWAPPED" in children
        assert was_swapped
        engine.assert_empty()


def finished_texts(engine: AsyncEngine) -> dict[str, str]:
    """The texts of finished requests by id, in the order in which they end."""
    return {output.request_id: output.outputs[0].text for output in engine.outputs if output.finished}


class TestAsynchronousOutput:
    def test_the_latest_token_of_the_preempted_is_not_lost(self) -> None:
        """It is processed before its sequence is preempted."""
        engine = AsyncEngine(HOOKS, max_num_seqs=1, scheduling_policy="priority")
        tokens = script(r="aaaa", u="bb")
        engine.surgical.add("r", priority=LOW)
        for _ in range(2):
            engine.step(tokens)
        engine.surgical.add("u", priority=URGENT)
        engine.run(tokens)
        assert finished_texts(engine) == {"u": "bb", "r": "aaaa"}
        assert list(finished_texts(engine)) == ["u", "r"]

    def test_one_that_has_ended_with_it_is_not_preempted(self) -> None:
        """A sequence that its pending token ends frees its slot and blocks itself."""
        engine = AsyncEngine(HOOKS, max_num_seqs=1, scheduling_policy="priority")
        tokens = script(r="a", u="bb")
        engine.surgical.add("r", priority=LOW)
        for _ in range(2):
            engine.step(tokens)
        engine.surgical.add("u", priority=URGENT)
        engine.run(tokens)
        assert finished_texts(engine) == {"r": "a", "u": "bb"}
        assert engine.surgical.scheduler.num_cumulative_preemption == 0


def test_a_child_has_its_requests_priority() -> None:
    """This holds at every depth."""
    engine = engine_with_priorities(dataclasses.replace(HOOKS, max_child_depth=2))
    group = engine.add("r", priority=MIDDLE)
    engine.run_until(lambda: "r_child_0_child_0" in engine.statuses(), lambda group: PROMISE)
    assert [child_of(group).priority, child_of(child_of(group)).priority] == [MIDDLE, MIDDLE]
    engine.run(lambda group: EOS)
    engine.assert_empty()
