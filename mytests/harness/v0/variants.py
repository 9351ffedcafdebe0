# SPDX-License-Identifier: Apache-2.0
"""Surgical engines of V0 with several samples, and with each policy for BLOCKED KV."""

import dataclasses
from types import SimpleNamespace
from typing import Any, get_args

from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine
from sequence_hooks.config.choices import BlockedKVPolicy
from vllm.config import SpecialKwargs
from vllm.sampling_params import SamplingParams
from vllm.sequence import ParallelSampleSequenceGroup, SequenceGroup


def add_samples(engine: SurgicalEngine, n: int, **params: object) -> None:
    """Add a request "r" of n samples, as `LLMEngine.add_request` does."""

    def add(request_id: str, params: SamplingParams, **_: object) -> SequenceGroup:
        group = engine.add(request_id)
        group.sampling_params = params
        return group

    facade = SimpleNamespace(_add_processed_request=add, seq_id_to_seq_group=engine.samples)
    sampling_params = SamplingParams(**{"n": n, "max_tokens": 50, "logprobs": 1} | params)
    ParallelSampleSequenceGroup.add_request("r", facade, sampling_params)


SAMPLES = {"r_parallel_sample_0_child_0": "A", "r_parallel_sample_1_child_0": "BCDEFG"}


MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")
POLICIES = get_args(BlockedKVPolicy)


def engine_with_kv(hooks: SpecialKwargs = MANUAL, policy: Any = "auto", **sizes: Any) -> SurgicalEngine:
    hooks = dataclasses.replace(hooks, blocked_kv_policy=policy)
    return SurgicalEngine(hooks, **sizes)
