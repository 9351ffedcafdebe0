# SPDX-License-Identifier: Apache-2.0
"""Random walks over V1's scheduler and block manager, with the worker that checks every slot."""

from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from mytests.fuzz.handlers import REPLACING
from mytests.fuzz.walks import MAX_QUEUED, Draw, Walks, walk
from mytests.harness.surgical import CHILD, SurgicalEngine
from mytests.harness.tiers import sizes
from mytests.harness.v1.layers import HAS_CHECKPOINTS, is_state
from mytests.harness.v1.releases import IS_REFERENCE
from sequence_hooks import SpecialKwargs

MUST_ARISE = {
    *("RUNNING to PREEMPTED", "RUNNING to BLOCKED", "KV to discard", "BLOCKED without KV"),
    *("abort waiting at depth 0", "abort running at depth 0", "resumed", "ended as stopped", "ended as length"),
    *("ended at its first join", "KV was loaded", "WAITING to WAITING_FOR_REMOTE_KVS"),
}


SHORT, LONG = 30 if IS_REFERENCE else 25, 400
"""Walks of a machine in `make test`, which reach the most of what they must, and in `make test-all`."""


class V1Walks(Walks):
    """With any number of blocks that fits one context, of slots, and of tokens a step, and steps in flight."""

    must_arise = frozenset(MUST_ARISE)
    strategies: ClassVar[tuple[str, ...]] = ("concatenate", "none")
    layers: ClassVar[tuple[tuple[str, ...], ...]] = (("full",),)
    """Of each, one of each group that has block tables of its own."""

    engine: SurgicalEngine

    def make_engine(self, hooks: dict[str, Any], draw: Draw) -> SurgicalEngine:
        block_size, max_model_len = draw(8, 4, 16), draw(128, 64, 96)
        layers = draw(*self.layers)
        is_chunked, has_caching = draw(True, True, False), draw(True, True, False)
        is_async, runner = draw((True, "first"), (True, "second"), (False, "first"))
        # Upstream's first runner schedules asynchronously with one stage alone.
        num_stages = draw(1, 1, 2, 3) if not is_async or runner == "second" else 1
        # Upstream has drafts with stages only where it schedules asynchronously, and no engine of a CPU has drafts and
        # checkpoints of states.
        has_drafts = (num_stages == 1 or is_async) and "checkpointed" not in layers
        num_drafts = draw(0, 3, 1) if has_drafts else 0
        return SurgicalEngine(
            SpecialKwargs(**hooks),
            block_size=block_size,
            # A state has a block for each draft.
            num_blocks=len(layers) * max_model_len // block_size
            + num_drafts * sum(map(is_state, layers))
            + draw(0, 1, 4, 32),
            max_num_seqs=draw(2, 1, 3, 5, 16),
            max_model_len=max_model_len,
            max_num_batched_tokens=draw(32, 16, 512) if is_chunked else draw(max_model_len, 512),
            chunked_prefill=is_chunked,
            prefix_caching=has_caching,
            scheduling_policy=draw("fcfs", "priority"),
            # With several stages, upstream counts the adapters of a step without those of the steps in flight.
            max_loras=draw(None, 1, 2) if num_stages == 1 else None,
            is_async=is_async,
            runner=runner,
            layers=layers,
            num_stages=num_stages,
            num_drafts=num_drafts,
            connector=draw(None, "Within", "Beside", "OffloadingConnector")
            if has_caching and layers == ("full",)
            else None,
        )

    def is_transferring(self) -> bool:
        carrier = self.engine.worker.carrier
        return carrier is not None and carrier.holds_blocks

    @precondition(lambda self: len(self.queued()) < MAX_QUEUED)
    @rule(length=st.sampled_from([50, 85]))
    def add_long(self, length: int) -> None:
        """Adds a request whose prompt takes several steps, and many blocks."""
        self.add(length, "p", 20, 0, 0, False)

    def look(self, before: dict[str, str]) -> None:
        """Also where the KV is, and who gives it up."""
        super().look(before)
        scheduler = self.engine.scheduler
        self.seen["KV was loaded"] += bool(self.engine.worker.carrier and self.engine.worker.carrier.num_loaded)
        self.seen["BLOCKED without KV"] += any(not each.num_computed_tokens for each in scheduler.blocked.values())
        for means, times in scheduler.evictor.evictions.items():
            self.seen[f"KV to {means}"] += times


class InjectingWalks(V1Walks):
    """Parents get the KV of their children."""

    must_arise = frozenset(MUST_ARISE | {"injected"})
    strategies = ("kv_inject",)


class BudgetWalks(V1Walks):
    """Trees may sample few tokens."""

    must_arise = frozenset({"used up at depth 1", "used up without a token", "too many sequences"})
    strategies = ("concatenate", "kv_inject")
    budgets = (4, 8, 20, 50)
    most_sequences = (None, 4)


class ReplacingWalks(V1Walks):
    """Joins replace the ends of contexts, beside others that inject."""

    must_arise = frozenset({"replaced at depth 0", "replaced at depth 1", "KV to discard"})
    strategies = ("concatenate", "kv_inject")
    handlers = (REPLACING,)
    budgets = (None, None, 50)


class LayersWalks(V1Walks):
    """Layers keep windows or chunks of the context alone, or a state."""

    must_arise = frozenset({"RUNNING to PREEMPTED", "KV to discard"})
    handlers = (REPLACING,)
    budgets = (None, None, 50)
    prefixes = ((), (CHILD,), (CHILD,) * 5)
    layers = (
        *(("full", "window"), ("window",), ("full", "chunk")),
        *(("full", "state"), ("state",), ("full", "window", "state"), ("state", "full"), ("state", "state", "full")),
        *((("checkpointed", "full"), ("full", "checkpointed", "checkpointed")) if HAS_CHECKPOINTS else ()),
    )


@pytest.mark.rule(15)
@pytest.mark.parametrize("machine", [V1Walks, InjectingWalks, BudgetWalks, ReplacingWalks, LayersWalks])
@sizes(SHORT, LONG)
def test_random_walks(machine: type[V1Walks], size: int) -> None:
    """All invariants hold, and the walks reach all that they must."""
    walk(machine, size, 1.0 if size == LONG else 0.5)
