# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: no step has more of them than the GPU has slots, and a sequence that waits for one loses nothing.

`SurgicalEngine.step` refuses a step with too many, as a worker does.
"""

import dataclasses

from mytests.harness.surgical import EOS, HOOKS, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, finished, plan

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")


class TestResumed:
    def test_a_resumed_sequence_waits_for_its_adapters_slot(self) -> None:
        """While another adapter runs, the sequence stays in its queue with its KV."""
        engine = SurgicalEngine(MANUAL, max_loras=1)
        engine.add("a", adapter=1)
        engine.step({"a": SYNC})
        engine.add("b", adapter=2)
        engine.step({})
        engine.processor.resume("a", "z")
        engine.step({})
        assert engine.statuses() == {"b": "RUNNING", "a": "WAITING"}
        engine.run(plan(a=".y", b="xxb"))
        assert (finished(engine, "a").text, finished(engine, "b").text) == ("zy", "xxb")
        assert finished(engine, "a").joins[0].num_prefill == 2
        engine.assert_empty()

    def test_one_with_a_free_slot_passes_it(self) -> None:
        """A sequence without an adapter overtakes one that waits for a slot, even if it was resumed later."""
        engine = SurgicalEngine(MANUAL, max_loras=1)
        for name, adapter in (("a", 1), ("c", 0)):
            engine.add(name, adapter=adapter)
        engine.step(lambda group: SYNC)
        engine.add("b", adapter=2)
        engine.step({})
        engine.processor.resume("a", "")
        engine.step({})
        engine.processor.resume("c", "")
        engine.step({})
        assert engine.statuses() == {"b": "RUNNING", "c": "RUNNING", "a": "WAITING"}
        engine.run(lambda group: EOS)
        engine.assert_empty()


class TestNewRequests:
    def waiting_for_a_slot(self) -> SurgicalEngine:
        """An engine in which "a" is resumed, and waits for the slot that "b" has."""
        engine = SurgicalEngine(MANUAL, max_loras=1)
        engine.add("a", adapter=1)
        engine.step({"a": SYNC})
        engine.add("b", adapter=2)
        engine.step({})
        engine.processor.resume("a", "")
        return engine

    def test_without_an_adapter_it_runs(self) -> None:
        """A new request without an adapter takes nothing that the others wait for."""
        engine = self.waiting_for_a_slot()
        engine.add("c")
        engine.step({})
        assert engine.statuses() == {"b": "RUNNING", "c": "RUNNING", "a": "WAITING"}
        engine.run(lambda group: EOS)
        engine.assert_empty()

    def test_with_the_adapter_that_runs_it_waits(self) -> None:
        """Otherwise new requests with the running adapter could keep the slot forever."""
        engine = self.waiting_for_a_slot()
        engine.add("c", adapter=2)
        engine.step({"b": EOS})
        engine.step({})
        assert engine.statuses() == {"a": "RUNNING", "c": "WAITING"}
        engine.run(lambda group: EOS)
        engine.assert_empty()


def test_children_run_with_their_parents_adapter() -> None:
    """Two trees with different adapters take turns if there is one slot."""
    engine = SurgicalEngine(dataclasses.replace(HOOKS, children_per_promise=2), max_loras=1)
    for name, adapter in (("r", 1), ("s", 2)):
        engine.add(name, adapter=adapter)
    engine.run(plan(r="!a", r_child_0="B", r_child_1="C", s="!d", s_child_0="E", s_child_1="F"))
    assert [finished(engine, name).text for name in "rs"] == ["B\nCa", "E\nFd"]
    engine.assert_empty()


def test_the_preempted_wait_for_a_slot_too() -> None:
    """A preempted child, which keeps its shared prefix, is scheduled again when no other adapter runs."""
    engine = SurgicalEngine(HOOKS, max_loras=1, num_blocks=9, max_model_len=36)
    engine.add("r", prompt="r" * 12, adapter=1)
    engine.step({"r": PROMISE})
    engine.add("s", prompt="s" * 4, adapter=1)
    engine.add("t", prompt="t" * 4, adapter=2)
    engine.run(plan(r="!z", r_child_0="B" * 12, s="c" * 16, t="d" * 12))
    assert engine.scheduler.num_cumulative_preemption > 0
    assert [finished(engine, name).text for name in "rst"] == ["B" * 12 + "z", "c" * 16, "d" * 12]
    engine.assert_empty()


def test_a_preempted_group_leaves_its_adapter_to_those_that_run_with_it() -> None:
    """Upstream counts its slot as free, and would admit another adapter into the same step."""
    engine = SurgicalEngine(HOOKS, max_loras=1, num_blocks=7, max_model_len=28)
    engine.add("r", prompt="r" * 10, adapter=1)
    engine.add("s", prompt="s" * 10, adapter=1)
    script = plan(r="a" * 15, s="b" * 9, t="c")
    engine.step(script)
    engine.add("t", prompt="t" * 3, adapter=2)
    engine.run(script)
    assert engine.scheduler.num_cumulative_preemption > 0
    assert [finished(engine, name).text for name in "rst"] == ["a" * 15, "b" * 9, "c"]
    engine.assert_empty()
