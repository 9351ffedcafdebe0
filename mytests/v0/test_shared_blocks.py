# SPDX-License-Identifier: Apache-2.0
"""What forks need from the block manager; each test fails if it is done as upstream does it."""

import dataclasses
import time
from typing import Any

import pytest

from mytests.harness.surgical import EOS, HOOKS, PROMISE, SYNC_HOOKS, SurgicalEngine, finished, plan
from mytests.harness.v0.groups import child_of


def engine_with_kv(hooks: Any = SYNC_HOOKS, block_size: int = 8, **sizes: Any) -> SurgicalEngine:
    """An engine whose attention is checked: each sequence must read its own context."""
    return SurgicalEngine(hooks, block_size=block_size, **sizes)


def test_a_child_shares_its_parents_blocks() -> None:
    """A spawn takes no block: the child's table is the parent's."""
    engine = SurgicalEngine(block_size=4)
    parent = engine.add(prompt="abcdefghij")
    free_before = engine.num_free_blocks() - 3
    engine.step({"r": PROMISE})
    assert engine.block_table(child_of(parent)) == engine.block_table(parent)
    assert engine.num_free_blocks() == free_before
    engine.run(lambda group: EOS)
    engine.assert_empty()


def test_a_block_that_is_copied_from_is_not_copied_into_in_the_same_step() -> None:
    """A step's copies run in no particular order; here a preemption frees the source of one of them."""
    engine = engine_with_kv(num_blocks=4, max_num_seqs=4)
    engine.add("r", "rrrr")
    engine.add("s", "ss")
    for tokens in ({"r": PROMISE}, {"r": PROMISE, "s": PROMISE}, {}):
        before = len(engine.copies)
        engine.step(tokens)
        copies = engine.copies[before:]
        assert not {source for source, _ in copies} & {target for _, target in copies}
    engine.run(lambda group: EOS)
    engine.assert_empty()


def test_blocked_parents_give_way_to_children_that_preempt_each_other() -> None:
    """Otherwise every step does something, yet no sequence makes progress."""
    hooks = dataclasses.replace(HOOKS, children_per_promise=2)
    engine = engine_with_kv(hooks, num_blocks=6, max_model_len=40, max_num_batched_tokens=16, max_num_seqs=4)
    engine.add("q", "q" * 6)
    engine.add("r", "p" * 17)
    for tokens in ({}, {}, {"r": PROMISE}, {}):
        engine.step(tokens)
    engine.run(lambda group: EOS, max_steps=40)
    engine.assert_empty()


def test_a_sequence_may_fill_the_last_block() -> None:
    """Upstream wants a free block for each block that is written to, and preempts the sequence again and again."""
    engine = engine_with_kv(num_blocks=4, max_model_len=32)
    engine.add(prompt="p" * 20)
    engine.run(plan(r="a" * 30), max_steps=20)
    assert finished(engine).finish_reason == "length"
    assert engine.scheduler.num_cumulative_preemption == 0
    engine.assert_empty()


@pytest.mark.parametrize("num_in_last_block", [1, 2, 3, 4])
def test_a_shared_block_counts_as_one_to_be_copied(num_in_last_block: int) -> None:
    """It counts however little is in it; after a full one a new block is needed, too."""
    engine = engine_with_kv(block_size=4, num_blocks=2)
    parent = engine.add(prompt="p" * (4 + num_in_last_block))
    engine.step({"r": PROMISE})
    assert engine.num_free_blocks() == 0
    assert engine.scheduler._blocks.num_missing([parent.first_seq]) > 0


def test_a_chunked_prefill_may_take_the_last_block() -> None:
    """Its later chunks have their blocks already."""
    engine = engine_with_kv(num_blocks=4, max_model_len=32, max_num_batched_tokens=16)
    engine.add(prompt="p" * 30)
    engine.run(plan(r="a"), max_steps=5)
    assert engine.scheduler.num_cumulative_preemption == 0
    engine.assert_empty()


def test_a_childs_promise_is_computed_though_the_cache_knows_it() -> None:
    """An earlier child left the full block of the same context in the cache; it may be gone before this child runs."""
    engine = engine_with_kv(HOOKS, block_size=4, num_blocks=16, prefix_caching=True)
    engine.add("r", "abc")
    engine.run(plan(r="!z", r_child_0="BCDE"))
    parent = engine.add("s", "abc")
    engine.step({"s": PROMISE})
    tracker = engine.scheduler.block_manager._computed_blocks_tracker
    assert tracker.get_num_cached_tokens(child_of(parent).first_seq) == 0
    engine.run(plan(s="!z", s_child_0="BCDE"))
    engine.assert_empty()


@pytest.mark.parametrize("num_steps", [1, 2])
def test_an_aborted_prefill_leaves_nothing_uncomputed_in_the_cache(num_steps: int) -> None:
    """A later request with the same prompt computes what the first one had not."""
    engine = engine_with_kv(block_size=4, num_blocks=8, prefix_caching=True, max_num_batched_tokens=8, max_num_seqs=2)
    engine.add("r", "abcdefghijklmnopqrstuvwxyz")
    for _ in range(num_steps):
        engine.step({})
    engine.scheduler.abort_seq_group("r")
    engine.add("s", "abcdefghijklmnopqrstuvwxyz")
    scheduled = engine.step({})
    assert [(entry.request_id, entry.num_tokens) for entry in scheduled] == [("s", 8 * num_steps + 8)]
    engine.run(lambda group: EOS)
    # It needs every block, including those of the aborted request.
    engine.add("t", "z" * 31)
    engine.run(lambda group: EOS)
    engine.assert_empty()


@pytest.mark.parametrize("letter", "abcdef")
def test_a_block_that_was_forgotten_is_evicted_as_what_it_holds_now(
    monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    """Upstream's queue of what to evict next still has it as what it held, maybe used at the same time."""
    monkeypatch.setattr(time, "time", lambda: 1.0)
    engine = engine_with_kv(
        block_size=4, num_blocks=5, max_model_len=16, prefix_caching=True, max_num_batched_tokens=8, max_num_seqs=2
    )
    engine.add("r", "r" * 12)
    engine.step({})
    engine.scheduler.abort_seq_group("r")
    for name in (letter, "z"):
        engine.add(name, name * 12)
        engine.run(lambda group: EOS)
    engine.assert_empty()


def test_a_swapped_prefill_comes_back_in_chunks() -> None:
    """It has more tokens left than fit into a step."""
    engine = engine_with_kv(
        num_blocks=6, num_cpu_blocks=32, max_model_len=48, max_num_batched_tokens=16, max_num_seqs=4
    )
    engine.add("r", "r" * 8)
    engine.add("s", "s" * 40)
    script = plan(r="a" * 38, s="b")
    engine.run(script, max_steps=120)
    assert (finished(engine, "r").text, finished(engine, "s").text) == ("a" * 38, "b")
    engine.assert_empty()


def test_a_block_is_not_evicted_before_those_behind_it() -> None:
    """A parent that was BLOCKED for long is freed after its child; upstream then finds blocks that follow a hole."""
    engine = engine_with_kv(HOOKS, block_size=4, num_blocks=4, max_model_len=12, prefix_caching=True)
    engine.add("r", "pppp")
    engine.run(plan(r="!", r_child_0="c" * 9))
    engine.add("s", "s" * 11, max_tokens=1)
    engine.run({})
    engine.add("t", "pppp\x02cccd", max_tokens=1)
    engine.run({})
    engine.assert_empty()


@pytest.mark.parametrize("caching", [False, True])
def test_a_context_of_many_blocks_is_forked(caching: bool) -> None:
    """Upstream walks a sequence's blocks recursively, which Python stops after a thousand calls."""
    engine = SurgicalEngine(
        num_blocks=1300, max_model_len=5000, max_num_batched_tokens=5000, prefix_caching=caching, block_size=4
    )
    engine.add(prompt="p" * 4500)
    engine.run(plan(r="a!" + "b" * 9, r_child_0="ABCDEFGHI"))
    assert finished(engine).text == "aABCDEFGHI" + "b" * 9
    engine.assert_empty()
