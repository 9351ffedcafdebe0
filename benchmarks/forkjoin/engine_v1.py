# SPDX-License-Identifier: Apache-2.0
"""An engine of a stock, current vLLM in this process, with the plug-in's hooks or without."""

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from benchmarks.forkjoin.engine import Observed
from benchmarks.forkjoin.plans import Script
from benchmarks.forkjoin.script_texts import SCRIPT
from benchmarks.forkjoin.scripts_v1 import Scripts
from vllm import SamplingParams

BLOCK_SIZE = 32
"""The smallest that upstream's attention takes on CPUs."""


class V1Engine(Observed):
    """See `Observed`."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        special_kwargs = arguments.pop("special_kwargs", None)
        arguments = {"block_size": BLOCK_SIZE, "logits_processors": [Scripts], **arguments}
        if special_kwargs is not None:
            from sequence_hooks.v1 import engine_args

            arguments = engine_args(special_kwargs, **arguments)
        super().__init__(arguments)

    def _scripted(self, script: Script, max_tokens: int, limits: dict[str, Any]) -> SamplingParams:
        return SamplingParams(temperature=0.0, max_tokens=max_tokens, extra_args={SCRIPT: script, **limits})

    def _observe(self) -> None:
        core = self._engine.engine_core.engine_core
        scheduler, executor = core.scheduler, core.model_executor
        pool, schedule, update = scheduler.kv_cache_manager.block_pool, scheduler.schedule, scheduler.update_from_output

        @wraps(schedule)
        def observed_schedule(*args: Any, **kwargs: Any) -> Any:
            scheduled = schedule(*args, **kwargs)
            self._step.num_tokens = scheduled.total_num_scheduled_tokens
            self._step.num_seqs = len(scheduled.num_scheduled_tokens)
            self.run.peak_blocks = max(self.run.peak_blocks, pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())
            return scheduled

        @wraps(update)
        def observed_update(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            outputs = update(*args, **kwargs)
            self._step.processing = time.perf_counter() - start
            return outputs

        scheduler.schedule, scheduler.update_from_output = observed_schedule, observed_update
        executor.execute_model = self._timed(executor.execute_model)
        executor.sample_tokens = self._timed(executor.sample_tokens)

    def _timed(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(execute)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            output = execute(*args, **kwargs)
            self._step.model += time.perf_counter() - start
            return output

        return timed
