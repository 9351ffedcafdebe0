# SPDX-License-Identifier: Apache-2.0
"""An engine of vLLM 0.9.2: pristine upstream, or this fork."""

import time
from functools import wraps
from typing import Any

from benchmarks.forkjoin.engine import Observed
from benchmarks.forkjoin.plans import Script
from vllm import SamplingParams

BLOCK_SIZE = 16


class V0Engine(Observed):
    """See `Observed`."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__({"block_size": BLOCK_SIZE, **arguments})

    def _scripted(self, script: Script, max_tokens: int, limits: dict[str, Any]) -> SamplingParams:
        return SamplingParams(
            temperature=0.0, max_tokens=max_tokens, logits_processors=[script], extra_args=limits or None
        )

    def _observe(self) -> None:
        (scheduler,) = self._engine.scheduler
        executor, processor = self._engine.model_executor, self._engine.output_processor
        manager, schedule, execute = scheduler.block_manager, scheduler.schedule, executor.execute_model
        process = processor.process_outputs

        @wraps(schedule)
        def observed_schedule() -> Any:
            scheduled = schedule()
            self._step.num_tokens = sum(map(_num_computed, scheduled[0]))
            self._step.num_seqs = len(scheduled[1].scheduled_seq_groups)
            used = manager.num_total_gpu_blocks - manager.get_num_free_gpu_blocks()
            self.run.peak_blocks = max(self.run.peak_blocks, used)
            return scheduled

        @wraps(execute)
        def observed_execute(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            output = execute(*args, **kwargs)
            self._step.model += time.perf_counter() - start
            return output

        @wraps(process)
        def observed_process(*args: Any, **kwargs: Any) -> None:
            start = time.perf_counter()
            process(*args, **kwargs)
            self._step.processing = max(self._step.processing, time.perf_counter() - start)

        scheduler.schedule, executor.execute_model = observed_schedule, observed_execute
        processor.process_outputs = observed_process


def _num_computed(metadata: Any) -> int:
    """The tokens of a scheduled sequence that the model computes: all but those that prefix caching found."""
    num_found = len(metadata.computed_block_nums or ()) * BLOCK_SIZE
    (data,) = metadata.seq_data.values()
    return max(1, metadata.token_chunk_size - max(0, num_found - data.get_num_computed_tokens()))
