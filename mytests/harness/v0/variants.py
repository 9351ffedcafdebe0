# SPDX-License-Identifier: Apache-2.0
"""Surgical engines of V0 with several samples, with each policy for BLOCKED KV, and with notes of what is injected."""

import dataclasses
from types import SimpleNamespace
from typing import Any, get_args

from mytests.harness.injecting import SYNC_INJECT
from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine
from mytests.harness.v0.worker import PretendedWorker
from sequence_hooks.config.choices import BlockedKVPolicy
from sequence_hooks.kv.transfer import Run
from vllm.config import SpecialKwargs
from vllm.core.hooked_metadata import HookedMetadata
from vllm.core.scheduler import SchedulerOutputs
from vllm.sampling_params import SamplingParams
from vllm.sequence import ParallelSampleSequenceGroup, SequenceGroup, SequenceGroupMetadata


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


class Recorder(PretendedWorker):
    """Records what the worker is told about injected KV."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.hooked: list[HookedMetadata] = []

    def __call__(self, metadata: list[SequenceGroupMetadata], outputs: SchedulerOutputs) -> None:
        self.hooked += (meta for meta in metadata if isinstance(meta, HookedMetadata))
        super().__call__(metadata, outputs)

    def runs(self) -> list[Run]:
        """The runs of all prefills with injected KV."""
        return [run for meta in self.hooked for run in meta.runs]


def engine_with_notes(hooks: SpecialKwargs = SYNC_INJECT, **sizes: Any) -> SurgicalEngine:
    return SurgicalEngine(hooks, worker_cls=Recorder, **sizes)


def recorded(engine: SurgicalEngine) -> Recorder:
    assert isinstance(engine.worker, Recorder)
    return engine.worker
