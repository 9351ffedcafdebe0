# SPDX-License-Identifier: Apache-2.0
"""Random trees from the engine that is installed, and plain models of transformers to compare with."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from mytests.fuzz.fuzzing import History, Request, Run, Setup
from mytests.fuzz.model import EOS, PROMISE, SYNC
from mytests.harness.training_models import logits_of
from sequence_hooks.training import Merge, TreeBatch, gather_logprobs

FORCED = [EOS, PROMISE, SYNC]
"""The tokens that a plan of the fuzzer forces at some places, and forbids elsewhere."""


@cache
def plain_model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="sdpa")


def random_history(merge: Merge, seed: int, **changes: Any) -> History:
    """Several requests with nested children, some of which start in their parent's own context, some with a prefix.

    There is room for all, so no KV is given up; ``changes`` are fields of the engine's `Setup` that are not random.
    """
    draw = Random(f"{merge} {seed}")
    setup = Setup(
        position_rule=None if merge == "concatenate" else merge,
        spare_blocks=400,
        max_num_seqs=16,
        max_num_batched_tokens=512,
        block_on=draw.choice(["promise", "sync"]),
        max_model_len=512,
        max_child_depth=draw.choice([1, 2]),
        max_children=draw.choice([3, 8]),
        prefixes=draw.choice([((),), ((5,), (9, 6)), ((5,),), ((), ()), ((7,), (8,), (9, 6))]),
        separator=draw.choice(["", "w007"]),
        child_max_tokens=draw.choice([None, 7]),
        merges_prefixes=draw.choice([False, False, True]),
    )
    requests = [Request(draw.randint(1, 40), draw.randint(8, 20), draw.randint(0, 99), topic) for topic in range(5)]
    return History(replace(setup, **changes), tuple(requests))


class ResettingRun(Run):
    """A run on V1 whose cache is reset after each 25 steps, also of what runs."""

    def _step(self) -> None:
        super()._step()
        if self.steps % 25 == 0:
            self.driver.scheduler.reset_prefix_cache(reset_running_requests=True)


def outputs_of(history: History, run_type: type[Run] = Run) -> list[Any]:
    """What an engine of its own returns for each request."""
    run = run_type(history)
    run.finish()
    return [*run.outputs.values()]


def is_free(batch: TreeBatch) -> torch.Tensor:
    """Where a token is predicted that no plan of the fuzzer has forced."""
    return batch.loss_mask & ~torch.isin(batch.target_ids, torch.tensor(FORCED))


def logprobs_of(model: Any, batch: TreeBatch, never_sampled: Sequence[int] = ()) -> torch.Tensor:
    """What transformers compute under the batch's mask, where some tokens are never sampled."""
    with torch.inference_mode():
        logits = logits_of(model, batch)
        logits[..., list(never_sampled)] = -torch.inf
        return gather_logprobs(logits, batch)
