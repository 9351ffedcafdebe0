# SPDX-License-Identifier: Apache-2.0
"""Stages of a pipeline on CPUs, each a process."""

from typing import Any

import torch

from mytests.fuzz.model import fill_with_noise
from mytests.harness.v1.cpu_platform import put_right
from mytests.harness.v1.leftovers import assert_worker_empty
from vllm.distributed import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker


class StagedWorker(CPUWorker):
    """Upstream's worker for CPUs makes the buffers of a stage's input only where it compiles the model."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for each in put_right():
            each.start()
        super().__init__(*args, **kwargs)
        # Threads of several stages would wait for each other's cores.
        torch.set_num_threads(1)

    def compile_or_warm_up_model(self) -> Any:
        runner: Any = self.model_runner
        if not get_pp_group().is_first_rank:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
        for layer in runner.kv_caches:
            fill_with_noise(layer)
        return super().compile_or_warm_up_model()

    def assert_empty(self) -> None:
        assert_worker_empty(self.model_runner)


STAGES: dict[str, Any] = {"worker_cls": f"{__name__}.StagedWorker", "pipeline_parallel_size": 2}
"""Arguments of an engine that has two."""
