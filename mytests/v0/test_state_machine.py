# SPDX-License-Identifier: Apache-2.0
"""Random walks over the real scheduler and block manager of V0, with a pretended KV cache that checks all reads."""

from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis.stateful import invariant

from mytests.fuzz.handlers import REPLACING
from mytests.fuzz.walks import Draw, Walks, walk
from mytests.harness.surgical import SurgicalEngine
from mytests.harness.tiers import sizes
from vllm.config import SpecialKwargs
from vllm.core.hooked_sequence import num_alike
from vllm.sequence import SequenceGroup

pytestmark = pytest.mark.no_cover


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


@pytest.mark.rule(15)
@pytest.mark.parametrize("machine", [V0Walks, BudgetWalks, ReplacingWalks])
@sizes(80, LONG)
def test_random_walks(machine: type[V0Walks], size: int) -> None:
    """All invariants hold, and the walks reach all that they must."""
    walk(machine, size, 1.0 if size == LONG else 0.5)
