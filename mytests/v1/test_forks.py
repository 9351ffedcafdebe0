# SPDX-License-Identifier: Apache-2.0
"""What forks share on V1, to the block; `mytests/rules/test_forks.py` says what they compute."""

from dataclasses import replace
from typing import Any

import pytest

from mytests.harness.stepped import Tokens
from mytests.harness.surgical import (
    CHILD,
    HOOKS,
    SYNC_HOOKS,
    SpecialKwargs,
    SurgicalEngine,
    begun,
    completed,
    finished,
    plan,
    tree,
)
from mytests.harness.v1.releases import since
from vllm.v1.core.sched.async_scheduler import AsyncScheduler


@pytest.mark.rule(1)
@pytest.mark.usefixtures("each_mode")
def test_full_blocks_are_shared_and_the_last_one_is_copied() -> None:
    """Upstream copies it when it admits the child, so that no more than one block is new."""
    engine = SurgicalEngine(HOOKS)
    with begun(engine, plan(r="!b", r_child_0="BCDEF"), lambda: "r_child_0" in engine.worker.tables, prompt="p" * 9):
        parent, child = engine.blocks_of("r"), engine.blocks_of("r_child_0")
        assert parent[:2] == child[:2] and parent[2] != child[2]
        assert engine.worker.copies == [(parent[2], child[2])]


@pytest.mark.usefixtures("each_mode")
@pytest.mark.parametrize("layer", ["window", "chunk"])
def test_of_layers_with_a_window_only_what_is_seen_is_shared(layer: str) -> None:
    """The blocks before it may be taken by others, though the child is not admitted yet."""
    engine = SurgicalEngine(HOOKS, layers=("full", layer), max_num_seqs=1)
    script = plan(r="!b", r_child_0="BCDEF")
    forks = engine.scheduler.kv.forks
    with begun(engine, script, lambda: bool(forks.children), prompt="p" * 20):
        (fork,) = forks._by_child.values()
        all_blocks, seen = fork.blocks
        assert [block.is_null for block in all_blocks] == [False] * len(all_blocks)
        assert [block.is_null for block in seen[:3]] == [True] * 3 and not seen[-1].is_null
    assert finished(engine).text == "BCDEFb"


@pytest.mark.usefixtures("each_mode")
@pytest.mark.parametrize("layers", [("state",), ("state", "full"), ("full", "window", "state")], ids="-".join)
class TestStates:
    """Layers overwrite their state with each token."""

    def test_a_child_begins_with_its_parents_state(self, layers: tuple[str, ...]) -> None:
        """It computes the promise, if no step in flight has, and its prefix."""
        engine = SurgicalEngine(replace(HOOKS, child_prefix_token_ids=(CHILD,)), layers=layers)
        engine.add(prompt="p" * 8)
        script = plan(r="ab!c", r_child_0="BCDEF")
        first = next(filter(None, (_num_computed(engine, "r_child_0", script) for _ in range(9))))
        engine.run(script)
        assert (first, finished(engine).text) == (1 if engine.is_async else 2, "abBCDEFc")

    @pytest.mark.parametrize(
        ("hooks", "rows", "texts"),
        [
            (HOOKS, 16, {"r": ("ab!c", "BCDEF", "abBCDEFc")}),
            (SYNC_HOOKS, 2, {"r": ("a!b!cccccccc.d", "BBBBBB", "CCC", "abccccccccBBBBBB\nCCCd")}),
            (SYNC_HOOKS, 2, {"r": ("a!cccccc.d", "BB", "accccccBBd"), "s": ("a!cccccc.d", "CC", "accccccCCd")}),
        ],
        ids=["in the prefix cache", "children that wait share a copy", "two parents in a step"],
    )
    def test_each_child_goes_on_from_the_state_of_its_parent(
        self, layers: tuple[str, ...], hooks: SpecialKwargs, rows: int, texts: dict[str, tuple[str, ...]]
    ) -> None:
        """One that fills its block may be found by others; a copy is made before their parent goes on."""
        engine = SurgicalEngine(replace(hooks, child_prefix_token_ids=(CHILD,)), layers=layers, max_num_seqs=rows)
        scripts: dict[str, str] = {}
        for name, (*script, _) in texts.items():
            engine.add(name, prompt=name * 9)
            scripts |= tree(*script, name=name)
        engine.run(plan(**scripts))
        for name, (*_, text) in texts.items():
            assert finished(engine, name).text == text

    def test_siblings_share_one_copy(self, layers: tuple[str, ...]) -> None:
        """Which is made once, and is free when all of them are admitted."""
        hooks = replace(SYNC_HOOKS, child_prefix_token_ids=(CHILD,), children_per_promise=3)
        engine = SurgicalEngine(hooks, layers=layers, max_num_seqs=1)
        script = plan(r="a!cccccccc.d", r_child_0="B", r_child_1="C", r_child_2="D")
        forks = engine.scheduler.kv.forks
        with begun(engine, script, lambda: bool(forks.children), prompt="p" * 9):
            before = forks.held
            engine.step(script)
            held = forks.held
            engine.step(script)
            assert len(held) == 3 and held == forks.held != before
            assert len({tuple(blocks) for blocks in held.values()}) == 1
        assert finished(engine).text == "accccccccB\nC\nDd"

    @pytest.mark.parametrize(
        ("merge", "num_merged", "num_prefill", "num_in_flight"), [("concatenate", 5, 6, 5), ("none", 0, 1, 12)]
    )
    def test_a_parent_goes_on_from_its_state(
        self, layers: tuple[str, ...], merge: Any, num_merged: int, num_prefill: int, num_in_flight: int
    ) -> None:
        """It computes what was merged, and its last token, if no step in flight has; without results, all anew."""
        engine = SurgicalEngine(replace(HOOKS, child_merge_strategy=merge), layers=layers)
        (join,) = completed(engine, prompt="p" * 9, r="ab!c", r_child_0="BCDEF").joins
        assert (join.num_merged, join.num_prefill) == (num_merged, num_in_flight if engine.is_async else num_prefill)

    def test_an_evicted_parent_goes_on_from_the_state_that_is_found(self, layers: tuple[str, ...]) -> None:
        """Where its KV ends now, and not where its state was, though no step that computed anything has said so."""
        engine = SurgicalEngine(replace(SYNC_HOOKS, sync_resume="manual"), layers=layers)
        with begun(engine, plan(r="abcdefg.z"), engine.is_waiting_for_callers, prompt="p" * 10) as script:
            engine.step(script)
            engine.evict("r")
            engine.resume("r", "tool")
        assert finished(engine).text == "abcdefgtoolz"

    def test_nobody_gives_up_kv_for_a_state_that_is_not_written_yet(self, layers: tuple[str, ...]) -> None:
        """Two children begin alike, and the second one waits for a step. Their BLOCKED parent keeps its KV."""
        alone = replace(HOOKS, child_context="none", child_prefix_token_ids=(CHILD,) * 9, children_per_promise=2)
        engine = SurgicalEngine(replace(alone, blocked_kv_policy="discard"), layers=layers)
        completed(engine, prompt="p" * 9, r="ab!c", r_child_0="BC", r_child_1="DE")
        assert not engine.scheduler.evictor.evictions

    @pytest.mark.parametrize("num_left", [0, 1])
    def test_without_a_block_for_a_copy_children_compute_their_context(
        self, layers: tuple[str, ...], num_left: int
    ) -> None:
        """Rather than go on from a state that is not theirs; the last free block is enough."""
        engine = SurgicalEngine(replace(SYNC_HOOKS, child_prefix_token_ids=(CHILD,)), layers=layers, max_num_seqs=1)
        script = plan(r="a!cccccccc.d", r_child_0="BBBBBB")
        with begun(engine, script, lambda: bool(engine.scheduler.kv.forks.children), prompt="p" * 9):
            pool = engine.scheduler.kv_cache_manager.block_pool
            others = pool.get_new_blocks(pool.get_num_free_blocks() - num_left)
            engine.scheduler.kv.forks.keep_states()
            pool.free_blocks(others)
            assert len(engine.scheduler.kv.forks.children) == num_left
        assert finished(engine).text == "accccccccBBBBBBd"


@since(32, "no layer that a CPU can compute saves a state within a step")
def test_a_step_ends_where_the_block_ends_in_which_a_found_prefix_has_ended() -> None:
    """The state after a prefix that fills a part of a block is not entered as the one after the whole block."""
    engine = SurgicalEngine(layers=("checkpointed", "full"), block_size=4)
    request, scheduler = engine.add(prompt="p" * 16), engine.scheduler
    # As upstream sets them for a `prefix_match_unit` of two tokens.
    scheduler.hash_block_size, scheduler.mamba_partial_cache_hit = 2, True
    assert scheduler._mamba_block_aligned_split(request, 10, 6) == 2
    assert scheduler._mamba_block_aligned_split(request, 8, num_new_local_computed_tokens=8) == 8
    engine.abort(request.request_id)
    engine.assert_empty()


@pytest.mark.parametrize("is_async", [False, True])
def test_the_scheduler_is_asynchronous_if_upstreams_would_be(is_async: bool) -> None:
    """One class is named in the configuration, where that is not known yet."""
    assert isinstance(SurgicalEngine(is_async=is_async).scheduler, AsyncScheduler) == is_async


def _num_computed(engine: SurgicalEngine, request_id: str, script: Tokens) -> int:
    """How many tokens of a request the next step computes."""
    return sum(each.num_tokens for each in engine.step(script) if each.request_id == request_id)
