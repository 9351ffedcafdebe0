# SPDX-License-Identifier: Apache-2.0
"""The worker of a stage on CPUs, which only workers import: upstream's own replaces a GPU's streams and events in any
process that imports it."""

from typing import Any

import torch

from mytests.harness.v1.cpu_platform import put_right
from vllm.distributed import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker


class StagedWorker(CPUWorker):
    """Upstream's worker for CPUs makes the buffers of a stage's input only where it compiles the model."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for each in put_right():
            each.start()
        super().__init__(*args, **kwargs)
        # The threads of all stages share the cores.
        torch.set_num_threads(1)

    def compile_or_warm_up_model(self) -> Any:
        runner: Any = self.model_runner
        if not get_pp_group().is_first_rank:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
        return super().compile_or_warm_up_model()
