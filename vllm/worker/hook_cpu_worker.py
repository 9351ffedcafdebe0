# SPDX-License-Identifier: Apache-2.0
"""Upstream's CPU worker, with KV copied from slot to slot."""

from dataclasses import dataclass
from typing import Any

from vllm.worker.cpu_model_runner import CPUModelRunner, ModelInputForCPUWithSamplingMetadata
from vllm.worker.cpu_worker import CPUWorker
from vllm.worker.hook_runner import HookModelInput, HookRunner


@dataclass(frozen=True)
class HookModelInputForCPU(HookModelInput, ModelInputForCPUWithSamplingMetadata):
    """Upstream's input with slot copies."""


class HookCPUModelRunner(HookRunner, CPUModelRunner):
    """Upstream's runner with slot copies and shifted positions."""

    _model_input_cls = HookModelInputForCPU


class HookCPUWorker(CPUWorker):
    """Upstream's worker with our runner. `load_model` raises a ValueError if KV cannot be injected."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, model_runner_cls=HookCPUModelRunner.in_place_of)
