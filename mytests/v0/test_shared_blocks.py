# SPDX-License-Identifier: Apache-2.0
"""What forks need from the block manager; each test fails if it is done as upstream does it."""

import dataclasses
import time
from typing import Any

import pytest

from mytests.harness.surgical import HOOKS, PROMISE, SYNC_HOOKS, SurgicalEngine, completed, finished
from mytests.harness.v0.groups import child_of
from mytests.harness.v0.scenes import Scene
from vllm.core.shared_blocks import last_copy_into_each

CACHING: dict[str, Any] = {"prefix_caching": True, "max_num_batched_tokens": 8, "max_num_seqs": 2}
SMALL: dict[str, Any] = {"block_size": 8, "num_blocks": 6, "max_num_batched_tokens": 16, "max_num_seqs": 4}


@pytest.mark.rule(1)
def test_a_child_shares_its_parents_blocks() -> None:
    """A spawn takes no block: the child's table is the parent's."""
    scene = Scene(SurgicalEngine(), r="!")
    parent = scene.engine.add(prompt="abcdefghij")
    free_before = scene.engine.num_free_blocks() - 3
    scene.happen(1)
    assert scene.engine.block_table(child_of(parent)) == scene.engine.block_table(parent)
    assert scene.engine.num_free_blocks() == free_before
    scene.end()


def test_a_block_is_copied_into_once_a_step() -> None:
    """A block that was freed and allocated again gets only its last owner's content."""
    assert last_copy_into_each([(1, 7), (2, 8), (3, 7)]) == [(3, 7), (2, 8)]


def test_a_block_that_is_copied_from_is_not_copied_into_in_the_same_step() -> None:
    """A step's copies run in no particular order; here a preemption frees the source of one of them."""
    scene = Scene(SurgicalEngine(SYNC_HOOKS, block_size=8, num_blocks=4, max_num_seqs=4), r="!!x", s="x!x")
    scene.happen(("r", 4), ("s", 2))
    for _ in range(3):
        before = len(scene.engine.copies)
        scene.happen(1)
        copies = scene.engine.copies[before:]
        assert not {source for source, _ in copies} & {target for _, target in copies}
    scene.end()


def test_blocked_parents_give_way_to_children_that_preempt_each_other() -> None:
    """Otherwise every step does something, yet no sequence makes progress."""
    hooks = dataclasses.replace(HOOKS, children_per_promise=2)
    scene = Scene(SurgicalEngine(hooks, max_model_len=40, **SMALL), r="!")
    scene.happen(("q", 6), ("r", 17), 4)
    scene.end()


@pytest.mark.parametrize(
    ("prompt", "text", "reason"),
    [
        pytest.param("p" * 20, "a" * 30, "length", id="a sequence may fill the last block"),
        pytest.param("p" * 30, "a", "stop", id="a chunked prefill may take the last block"),
    ],
)
def test_upstream_wants_a_free_block_for_each_that_is_written_to(prompt: str, text: str, reason: str) -> None:
    """It would preempt the sequence again and again; later chunks of a prompt have their blocks already."""
    engine = SurgicalEngine(SYNC_HOOKS, block_size=8, num_blocks=4, max_model_len=32, max_num_batched_tokens=16)
    assert completed(engine, prompt, r=text).finish_reason == reason
    assert engine.num_preemptions() == 0


@pytest.mark.parametrize("num_in_last_block", [1, 2, 3, 4])
def test_a_shared_block_counts_as_one_to_be_copied(num_in_last_block: int) -> None:
    """It counts however little is in it; after a full one a new block is needed, too."""
    engine = SurgicalEngine(SYNC_HOOKS, num_blocks=2)
    parent = engine.add(prompt="p" * (4 + num_in_last_block))
    engine.step({"r": PROMISE})
    assert engine.num_free_blocks() == 0
    assert engine.scheduler._blocks.num_missing([parent.first_seq]) > 0


def test_a_childs_promise_is_computed_though_the_cache_knows_it() -> None:
    """An earlier child left the full block of the same context in the cache; it may be gone before this child runs."""
    engine = SurgicalEngine(HOOKS, num_blocks=16, prefix_caching=True)
    completed(engine, "abc", r="!z", r_child_0="BCDE")
    scene, parent = Scene(engine, s="!z", s_child_0="BCDE"), engine.add("s", "abc")
    scene.happen(1)
    tracker = engine.scheduler.block_manager._computed_blocks_tracker
    assert tracker.get_num_cached_tokens(child_of(parent).first_seq) == 0
    scene.end()


@pytest.mark.parametrize("num_steps", [1, 2])
def test_an_aborted_prefill_leaves_nothing_uncomputed_in_the_cache(num_steps: int) -> None:
    """A later request with the same prompt computes what the first one had not."""
    scene = Scene(SurgicalEngine(SYNC_HOOKS, num_blocks=8, **CACHING))
    scene.engine.add("r", "abcdefghijklmnopqrstuvwxyz")
    scene.happen(num_steps)
    scene.engine.abort("r")
    scene.engine.add("s", "abcdefghijklmnopqrstuvwxyz")
    scheduled = scene.engine.step(scene.tokens)
    assert [(entry.request_id, entry.num_tokens) for entry in scheduled] == [("s", 8 * num_steps + 8)]
    scene.end()
    # It needs every block, including those of the aborted request.
    scene.happen(("t", 31))
    scene.end()


@pytest.mark.parametrize("letter", "abcdef")
def test_a_block_that_was_forgotten_is_evicted_as_what_it_holds_now(
    monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    """Upstream's queue of what to evict next still has it as what it held, maybe used at the same time."""
    monkeypatch.setattr(time, "time", lambda: 1.0)
    scene = Scene(SurgicalEngine(SYNC_HOOKS, num_blocks=5, max_model_len=16, **CACHING))
    scene.happen(("r", 12), 1)
    scene.engine.abort("r")
    for name in (letter, "z"):
        scene.happen((name, 12))
        scene.end()


def test_a_swapped_prefill_comes_back_in_chunks() -> None:
    """It has more tokens left than fit into a step."""
    scene = Scene(SurgicalEngine(SYNC_HOOKS, num_cpu_blocks=32, max_model_len=48, **SMALL), r="a" * 38, s="b")
    scene.happen(("r", 8), ("s", 40))
    scene.end()
    assert [finished(scene.engine, name).text for name in "rs"] == ["a" * 38, "b"]


def test_a_block_is_not_evicted_before_those_behind_it() -> None:
    """A parent that was BLOCKED for long is freed after its child; upstream then finds blocks that follow a hole."""
    engine = SurgicalEngine(HOOKS, num_blocks=4, max_model_len=12, prefix_caching=True)
    completed(engine, "pppp", r="!", r_child_0="c" * 9)
    for name, prompt in (("s", "s" * 11), ("t", "pppp\x02cccd")):
        engine.add(name, prompt, max_tokens=1)
        engine.run({})
    engine.assert_empty()


@pytest.mark.parametrize("caching", [False, True])
def test_a_context_of_many_blocks_is_forked(caching: bool) -> None:
    """Upstream walks a sequence's blocks recursively, which Python stops after a thousand calls."""
    sizes: dict[str, Any] = {"num_blocks": 1300, "max_model_len": 5000, "max_num_batched_tokens": 5000}
    engine = SurgicalEngine(prefix_caching=caching, **sizes)
    output = completed(engine, "p" * 4500, r="a!" + "b" * 9, r_child_0="ABCDEFGHI")
    assert output.text == "aABCDEFGHI" + "b" * 9
