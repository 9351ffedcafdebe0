# SPDX-License-Identifier: Apache-2.0
"""Upstream's GPU worker, with KV copied from slot to slot."""

from dataclasses import dataclass
from typing import Any

from vllm.worker.hook_runner import HookModelInput, HookRunner
from vllm.worker.model_runner import ModelInputForGPUWithSamplingMetadata, ModelRunner
from vllm.worker.worker import Worker


@dataclass(frozen=True)
class HookModelInputForGPU(HookModelInput, ModelInputForGPUWithSamplingMetadata):
    """Upstream's input with slot copies."""


class HookModelRunner(HookRunner, ModelRunner):
    """Upstream's runner with slot copies, made outside CUDA graphs, and shifted positions."""

    _model_input_cls = HookModelInputForGPU


class HookWorker(Worker):
    """Upstream's worker with our runner. `load_model` raises a ValueError if KV cannot be injected."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, model_runner_cls=HookModelRunner.in_place_of)
