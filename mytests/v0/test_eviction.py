# SPDX-License-Identifier: Apache-2.0
"""Too little KV, or too few slots for LoRA adapters: who gives up what, who waits, and that none waits forever."""

import dataclasses
from typing import Any

import pytest

from mytests.fuzz.handlers import REPLACING
from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, finished
from mytests.harness.v0.scenes import MANUAL, Event, Scene, engine_with_kv
from vllm.core.hooked_sequence import branch_of


def blocked_under_pressure(policy: str, **sizes: Any) -> SurgicalEngine:
    """``r`` is BLOCKED with two of eight blocks, and two others outgrow the rest."""
    engine = engine_with_kv(policy=policy, num_blocks=8, max_model_len=32, **sizes)
    scene = Scene(engine, r=".", s="a" * 6, t="b" * 6)
    scene.happen(("r", 8), 1, ("s", 8), ("t", 8))
    engine.run_until(engine.is_waiting_for_callers, scene.tokens)
    assert [finished(engine, name).text for name in "st"] == ["a" * 6, "b" * 6]
    assert (engine.num_preemptions() > 0) == (policy == "preserve")
    return engine


def num_prefilled(engine: SurgicalEngine) -> int:
    """The number of tokens that ``r`` prefills when it goes on with four more, to its end."""
    engine.resume("r", "tool")
    Scene(engine, r=".z").end()
    assert finished(engine).text == "toolz"
    return finished(engine).joins[0].num_prefill


class TestPolicies:
    @pytest.mark.parametrize("policy", ["discard", "swap"])
    @pytest.mark.parametrize("num_cpu_blocks", [0, 1])
    def test_discarded_kv_is_computed_again(
        self, policy: str, num_cpu_blocks: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        """One block each time that one was missing, in the end all of it; so it is where there is no room to swap."""
        engine = blocked_under_pressure(policy, num_cpu_blocks=num_cpu_blocks)
        assert engine.scheduler.evictor.evictions == {"discard": 2}
        assert engine.scheduler.evictor.num_recomputed == 8
        assert num_prefilled(engine) == 8 + 1 + 4
        is_warned_of = "blocked_kv_policy is 'swap', and there is no swap space" in caplog.text
        assert is_warned_of is (policy == "swap" and not num_cpu_blocks)

    def test_what_a_join_replaces_may_have_no_kv(self) -> None:
        """All that it leaves of the context is computed then."""
        engine = engine_with_kv(dataclasses.replace(HOOKS, block_on="sync", handlers=tuple(REPLACING.items())))
        scene, parent = Scene(engine, r="!aaayz", r_child_0="BBBBBB"), engine.add()
        engine.run_until(lambda: engine.statuses()["r"] == "BLOCKED", scene.tokens)
        engine.scheduler.evictor.evict_all(parent)
        scene.end()
        (join,) = finished(engine).joins
        assert join.num_replaced and join.num_prefill == join.num_context

    @pytest.mark.parametrize(("seconds_per_block", "means"), [(1.0, "swap"), (2.5, "discard")])
    def test_auto_takes_the_means_that_wastes_less(
        self, seconds_per_block: float, means: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The choice is between recomputing eight tokens and copying two blocks out and back."""
        monkeypatch.setattr("vllm.core.eviction.StepCosts.fit", lambda _: (1.0, seconds_per_block))
        engine = blocked_under_pressure("auto", num_cpu_blocks=8)
        assert set(engine.scheduler.evictor.evictions) == {means}
        num_prefilled(engine)

    def test_the_least_waste_for_a_block_goes_first(self) -> None:
        """A last block with one token goes before one with four that blocked later, and no more than is missing."""
        scene = Scene(engine_with_kv(num_blocks=6), r=".", s=".", t="x")
        scene.happen(("r", 5), ("s", 8), 1, ("t", 8), 2)
        assert [len(scene.engine.blocks_of(name)) for name in "rs"] == [1, 2]

    @pytest.mark.rule(8)
    @pytest.mark.parametrize("target", ["r", "r_child_0"])
    def test_an_abort_of_a_swapped_sequence(self, target: str) -> None:
        """Its blocks in swap space are freed, too."""
        engine = SurgicalEngine(SYNC_HOOKS, num_blocks=9, num_cpu_blocks=32, max_model_len=32)
        scene = Scene(engine, q="x" * 20, r="!" + "y" * 20 + ".z", r_child_0="C" * 20)
        scene.happen(("q", 8), ("r", 8))
        engine.run_until(lambda: engine.statuses().get(target) == "SWAPPED", scene.tokens)
        engine.abort(target)
        scene.end()


class TestSharedPrefix:
    def test_it_stays_when_a_parent_gives_up_the_rest(self) -> None:
        """Its child shares two of its three blocks; only the third is computed again."""
        engine = engine_with_kv(SYNC_HOOKS, num_blocks=9)
        scene = Scene(engine, r="!aaa.z", r_child_0="B" * 12, s="c" * 8)
        assert scene.happen(("r", 8), 5) == {"r_child_0": "RUNNING", "r": "BLOCKED"}
        scene.happen(("s", 9))
        engine.run_until(lambda: engine.scheduler.evictor.evictions["discard"] > 0, scene.tokens)
        assert len(engine.blocks_of("r")) == 2
        scene.end()
        (join,) = finished(engine).joins
        assert (join.num_context - join.num_prefill, finished(engine).text) == (8, "aaa" + "B" * 12 + "z")

    def test_a_parent_whose_blocks_are_all_shared_gives_up_none(self) -> None:
        """Evicting them would free nothing: its child is preempted, and keeps them too."""
        scene = Scene(engine_with_kv(HOOKS, num_blocks=4, max_model_len=64), r="!")
        engine = scene.engine
        scene.happen(("r", 8), 2, ("s", 1))
        engine.scheduler._estimate.num_wanted = lambda group: 0  # type: ignore[method-assign]
        engine.run_until(lambda: engine.num_preemptions() > 0, scene.tokens)
        assert engine.scheduler.evictor.evictions == {}
        assert len(engine.blocks_of("r")) >= 2


@pytest.mark.parametrize(("num_blocks", "num_lost"), [(14, 0), (8, 4), (7, 8)])
def test_a_resume_recomputes_what_the_prefix_cache_has_lost(num_blocks: int, num_lost: int) -> None:
    """Discarded blocks are found in the cache until they are reused, which happens to the last ones first."""
    engine = engine_with_kv(policy="discard", num_blocks=num_blocks, prefix_caching=True)
    scene, group = Scene(engine, r=".", s="a"), engine.add("r", prompt="p" * 8)
    scene.happen(1)
    assert engine.scheduler.evictor.evict_one([group], 99)
    scene.happen(("s", 24))
    engine.run_until(engine.is_waiting_for_callers, scene.tokens)
    before = engine.worker.num_computed
    num_prefilled(engine)
    # Plus the sync token, the four new tokens, and the token sampled after them.
    assert engine.worker.num_computed - before == num_lost + 1 + 4 + 1


def test_a_step_that_copies_out_copies_nothing_in() -> None:
    """The worker copies in first, which would overwrite what is still to be saved."""
    engine = engine_with_kv(policy="swap", num_blocks=6, num_cpu_blocks=16, max_model_len=24)
    scene = Scene(engine, r=".a", s=".b", t="c" * 12)
    scene.happen(("r", 8), ("s", 8), 1, ("t", 8))
    engine.run_until(lambda: engine.scheduler.evictor.evictions["swap"] > 0, scene.tokens)
    scene.happen("r", "s")
    scene.end()
    assert [finished(engine, name).text for name in "rst"] == ["a", "b", "c" * 12]


def test_what_is_recomputed_has_no_branch_of_its_own() -> None:
    """Even under pressure a request without hooks is upstream's."""
    engine = engine_with_kv(num_blocks=4, max_model_len=16)
    groups = engine.add("r", prompt="r" * 6), engine.add("s", prompt="s" * 6)
    Scene(engine, r="a" * 8, s="b" * 8).end()
    assert [branch_of(group) for group in groups] == [None, None]
    assert engine.num_preemptions() > 0


class TestAdapterSlots:
    """`SurgicalEngine.step` refuses a step with more adapters than slots, as a worker does."""

    def test_a_resumed_sequence_waits_for_its_adapters_slot(self) -> None:
        """While another adapter runs, the sequence stays in its queue with its KV."""
        scene = Scene(SurgicalEngine(MANUAL, max_loras=1), a=".y", b="xxb")
        statuses = scene.happen(("a", 6, 0, 1), 1, ("b", 6, 0, 2), 1, "a", 1)
        assert statuses == {"b": "RUNNING", "a": "WAITING"}
        assert scene.end() == "ba"
        assert [finished(scene.engine, name).text for name in "ab"] == ["y", "xxb"]
        assert finished(scene.engine, "a").joins[0].num_prefill == 1

    def test_one_with_a_free_slot_passes_it(self) -> None:
        """A sequence without an adapter overtakes one that waits for a slot, even if it was resumed later."""
        scene = Scene(SurgicalEngine(MANUAL, max_loras=1), a=".y", c=".y")
        scene.happen(("a", 6, 0, 1), ("c", 6), 1, ("b", 6, 0, 2), 1, "a", 1)
        assert scene.happen("c", 1) == {"b": "RUNNING", "c": "RUNNING", "a": "WAITING"}
        scene.end()


@pytest.mark.parametrize(
    ("events", "statuses"),
    [
        pytest.param([("c", 6), 1], {"b": "RUNNING", "c": "RUNNING", "a": "WAITING"}, id="without an adapter it runs"),
        pytest.param([("c", 6, 0, 2), 3], {"a": "RUNNING", "c": "WAITING"}, id="with the one that runs it waits"),
    ],
)
def test_a_new_request_takes_nothing_that_others_wait_for(events: list[Event], statuses: dict[str, str]) -> None:
    """Here "a" is resumed, and waits for the slot of "b"; otherwise new ones with its adapter could keep it forever."""
    scene = Scene(SurgicalEngine(MANUAL, max_loras=1), a=".y", b="xx")
    scene.happen(("a", 6, 0, 1), 1, ("b", 6, 0, 2), 1, "a")
    assert scene.happen(*events) == statuses
    scene.end()


def test_the_preempted_wait_for_a_slot_too() -> None:
    """A preempted child, which keeps its shared prefix, is scheduled again when no other adapter runs."""
    engine = SurgicalEngine(HOOKS, max_loras=1, num_blocks=9, max_model_len=36)
    scene = Scene(engine, r="!z", r_child_0="B" * 12, s="c" * 16, t="d" * 12)
    scene.happen(("r", 12, 0, 1), 1, ("s", 4, 0, 1), ("t", 4, 0, 2))
    scene.end()
    assert engine.num_preemptions() > 0
    assert [finished(engine, name).text for name in "rst"] == ["B" * 12 + "z", "c" * 16, "d" * 12]


def test_a_preempted_group_leaves_its_adapter_to_those_that_run_with_it() -> None:
    """Upstream counts its slot as free, and would admit another adapter into the same step."""
    engine = SurgicalEngine(HOOKS, max_loras=1, num_blocks=7, max_model_len=28)
    scene = Scene(engine, r="a" * 15, s="b" * 9, t="c")
    scene.happen(("r", 10, 0, 1), ("s", 10, 0, 1), 1, ("t", 3, 0, 2))
    scene.end()
    assert engine.num_preemptions() > 0
    assert [finished(engine, name).text for name in "rst"] == ["a" * 15, "b" * 9, "c"]
