# SPDX-License-Identifier: Apache-2.0
"""Stages of a pipeline on CPUs, each a process."""

from typing import Any

from vllm.distributed import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker


class StagedWorker(CPUWorker):
    """Upstream's worker for CPUs makes the buffers of a stage's input only where it compiles the model."""

    def compile_or_warm_up_model(self) -> Any:
        runner: Any = self.model_runner
        if not get_pp_group().is_first_rank:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
        return super().compile_or_warm_up_model()


STAGES = {"worker_cls": f"{__name__}.StagedWorker", "pipeline_parallel_size": 2}
"""Arguments of an engine that has two."""
