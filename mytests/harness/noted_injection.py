# SPDX-License-Identifier: Apache-2.0
"""A surgical engine whose worker notes what it is told about injected KV."""

from typing import Any

from mytests.harness.injecting import SYNC_INJECT
from mytests.harness.surgical import SurgicalEngine
from mytests.harness.v0.worker import PretendedWorker
from sequence_hooks.kv.transfer import Run
from vllm.config import SpecialKwargs
from vllm.core.hooked_metadata import HookedMetadata
from vllm.core.scheduler import SchedulerOutputs
from vllm.sequence import SequenceGroupMetadata


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


def engine_with_kv(hooks: SpecialKwargs = SYNC_INJECT, **sizes: Any) -> SurgicalEngine:
    return SurgicalEngine(hooks, worker_cls=Recorder, **sizes)


def recorded(engine: SurgicalEngine) -> Recorder:
    """What the engine's worker was told."""
    assert isinstance(engine.worker, Recorder)
    return engine.worker
