# SPDX-License-Identifier: Apache-2.0
"""An engine of whichever vLLM is installed for this interpreter, with each of its steps timed.

It runs in pristine upstream's environment too, so nothing here needs this fork.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.engine.llm_engine import LLMEngine

BLOCK_SIZE = 16


@dataclass
class Step:
    """One step of the engine. Times in seconds."""

    duration: float
    num_tokens: int
    """Tokens that the model computed."""

    num_seqs: int
    model: float
    """The part of the duration in the model and the sampler."""

    processing: float
    """The part of the duration in which the outputs of one sequence were processed: the longest."""

    after: float = 0.0
    """The time between the previous step and this one, in which a client works."""


@dataclass
class Run:
    """What happened between the first request and the last token."""

    seconds: float = 0.0
    steps: list[Step] = field(default_factory=list)
    peak_blocks: int = 0
    """The most blocks in use on the device at once."""

    bounds: list[int] = field(default_factory=list)
    """The numbers of steps after which a client's tree had the outputs of a round of requests."""

    elsewhere: float = 0.0
    """Cores that other processes kept busy during the run."""


def _nothing(request_id: str, output: tuple[int, ...]) -> None:
    """Ignore an output, as most ways do."""


class Observed:
    """An engine whose steps are recorded in the current `Run`."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                enforce_eager=True,
                disable_log_stats=True,
                use_tqdm_on_load=False,
                block_size=BLOCK_SIZE,
                seed=0,
                **arguments,
            )
        )
        self.run = Run()
        self._step = Step(0.0, 0, 0, 0.0, 0.0)
        self._observe()

    def start(self) -> None:
        """Begin a new run with nothing kept from an earlier one."""
        self._engine.reset_prefix_cache()
        self.run = Run()
        self._last = self._started = time.perf_counter()

    def finish(self) -> Run:
        """End the run."""
        self.run.seconds = time.perf_counter() - self._started
        return self.run

    def add(self, request_id: str, prompt: Iterable[int], params: SamplingParams) -> None:
        """Add a request; ``params`` hold its scripts."""
        self._engine.add_request(request_id, {"prompt_token_ids": list(prompt)}, params)

    def end_round(self) -> None:
        """Note that a client continues with the outputs of a round of requests."""
        self.run.bounds.append(len(self.run.steps))

    def drain(self, then: Callable[[str, tuple[int, ...]], None] = _nothing) -> dict[str, tuple[int, ...]]:
        """Step until the engine is empty. Return each request's output tokens, which ``then`` gets as each finishes."""
        outputs: dict[str, tuple[int, ...]] = {}
        while self._engine.has_unfinished_requests():
            step = self._step = Step(0.0, 0, 0, 0.0, 0.0)
            start = time.perf_counter()
            finished = [output for output in self._engine.step() if output.finished]
            now = time.perf_counter()
            step.duration, step.after = now - start, start - self._last
            self._last = now
            self.run.steps.append(step)
            for output in finished:
                outputs[output.request_id] = tuple(output.outputs[0].token_ids)
                then(output.request_id, outputs[output.request_id])
        return outputs

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
