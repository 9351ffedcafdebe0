# SPDX-License-Identifier: Apache-2.0
"""What forks need from the block manager, alone and in random walks with a pretended KV cache that checks all reads."""

import dataclasses
import time
from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis.stateful import invariant

from mytests.fuzz.handlers import REPLACING
from mytests.fuzz.walks import Draw, Walks, walk
from mytests.harness.surgical import HOOKS, PROMISE, SYNC_HOOKS, SurgicalEngine, completed, finished
from mytests.harness.tiers import sizes
from mytests.harness.v0.groups import child_of
from mytests.harness.v0.scenes import Scene
from vllm.config import SpecialKwargs
from vllm.core.hooked_sequence import num_alike
from vllm.core.shared_blocks import last_copy_into_each
from vllm.sequence import SequenceGroup

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


class V0Walks(Walks):
    """With swap space and adapters."""

    seen: ClassVar[Counter[str]] = Counter()
    must_arise = frozenset(
        {
            *("RUNNING to WAITING", "RUNNING to SWAPPED", "SWAPPED to RUNNING", "WAITING to FINISHED_IGNORED"),
            *("BLOCKED without KV", "BLOCKED to WAITING", "BLOCKED to RUNNING", "BLOCKED to FINISHED_STOPPED"),
            *(f"abort {queue} at depth 0" for queue in ("waiting", "running", "swapped", "blocked")),
            *("abort running at depth 1", "abort forked at depth 1"),
            *("KV to swap", "KV to discard", "BLOCKED in swap space", "BLOCKED with some KV"),
            *("preempted with its prefix", "resumed", "injected", "assembled", "ended at a join"),
            *("ended without children", "ended at its first join"),
        }
    )
    policies = ("swap", "auto", "discard", "preserve")
    engine: SurgicalEngine

    def make_engine(self, hooks: dict[str, Any], draw: Draw) -> SurgicalEngine:
        """See `Walks.make_engine`. Swap space excludes prefix caching: upstream cannot have both."""
        self.groups: dict[str, SequenceGroup] = {}
        block_size, num_blocks, prefix_caching = draw(8, 16, 32), draw(*range(2, 10)), draw(False, True)
        num_cpu_blocks = 0 if prefix_caching else draw(512, 0)
        # If swapped sequences can outgrow the GPU, upstream does not start; if others can, they fail.
        can_outgrow = not num_cpu_blocks and draw(False, True)
        return SurgicalEngine(
            SpecialKwargs(**hooks),
            block_size=block_size,
            num_blocks=num_blocks,
            max_num_seqs=draw(2, 1, 3, 5),
            max_model_len=128 if can_outgrow else min(128, num_blocks * block_size),
            max_num_batched_tokens=draw(block_size if prefix_caching else 16, 32, 512),
            prefix_caching=prefix_caching,
            scheduling_policy=draw("fcfs", "priority"),
            max_loras=draw(None, 1, 2),
            num_cpu_blocks=num_cpu_blocks,
        )

    @invariant()
    def tables_fit(self) -> None:
        """Block tables exist where they must, and only where they may, and cover what is computed."""
        scheduler, manager = self.engine.scheduler, self.engine.scheduler.block_manager
        must = {g.first_seq.seq_id for g in [*scheduler.running, *scheduler.swapped, *scheduler.forked]}
        kept = scheduler._kept._num_alike.keys()
        may = must | kept | {g.first_seq.seq_id for g in scheduler.blocked}
        assert must <= manager.block_tables.keys() <= may
        assert set(manager._computed_blocks_tracker._seq_id_to_blocks_hashes) <= may
        seqs = {group.first_seq.seq_id: group.first_seq for group in self.engine.queued()}
        tables = manager.block_tables
        for seq_id, table in ((i, t) for i, t in tables.items() if i not in kept):
            assert num_alike(seqs[seq_id]) <= table.num_full_slots <= seqs[seq_id].get_len()

    def statuses(self) -> dict[str, str]:
        """Also those of sequences that have ended."""
        self.groups |= {group.request_id: group for group in self.engine.queued()}
        return {name: group.first_seq.status.name for name, group in self.groups.items()}

    def look(self, before: dict[str, str]) -> None:
        """Also where the KV is, and who gives it up by what means."""
        super().look(before)
        scheduler = self.engine.scheduler
        for group in scheduler.blocked:
            seq, table = group.first_seq, scheduler.block_manager.block_tables.get(group.first_seq.seq_id)
            self.seen["BLOCKED without KV"] += table is None
            self.seen["BLOCKED with some KV"] += table is not None and 0 < table.num_full_slots < seq.get_len() - 1
            self.seen["BLOCKED in swap space"] += table is not None and not scheduler._blocks.is_on_device(seq)
        for group in scheduler.forked:
            self.seen["preempted with its prefix"] += before.get(group.request_id) == "RUNNING"
        for means, times in scheduler.evictor.evictions.items():
            self.seen[f"KV to {means}"] += times


class BudgetWalks(V0Walks):
    """Trees may sample few tokens."""

    seen: ClassVar[Counter[str]] = Counter()
    must_arise = frozenset(
        {
            *("used up at depth 1", "used up without a token", "too many sequences"),
            *("RUNNING to FINISHED_LENGTH_CAPPED", "WAITING to FINISHED_LENGTH_CAPPED"),
            *("SWAPPED to FINISHED_LENGTH_CAPPED", "BLOCKED to FINISHED_LENGTH_CAPPED"),
        }
    )
    budgets = (4, 8, 20, 50)
    most_sequences = (None, 4)


class ReplacingWalks(V0Walks):
    """Joins replace the ends of contexts, wherever their KV is, beside others that inject."""

    seen: ClassVar[Counter[str]] = Counter()
    must_arise = frozenset(
        {
            *("replaced at depth 0", "replaced at depth 1", "injected", "BLOCKED without KV", "BLOCKED in swap space"),
            "assembled",
        }
    )
    handlers = (REPLACING,)
    budgets = (None, None, 50)


LONG = 1_000
"""Walks of a machine in `make test-all`, which reach all that they must; the short ones reach the most of it."""


@pytest.mark.no_cover
@pytest.mark.rule(15)
@pytest.mark.parametrize("machine", [V0Walks, BudgetWalks, ReplacingWalks])
@sizes(80, LONG)
def test_random_walks(machine: type[V0Walks], size: int) -> None:
    """All invariants hold, and the walks reach all that they must."""
    walk(machine, size, 1.0 if size == LONG else 0.5)
