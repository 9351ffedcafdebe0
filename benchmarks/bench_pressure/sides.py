# SPDX-License-Identifier: Apache-2.0
"""The sides that are compared, each with its own engine, and what a run of the workload measures on one."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from benchmarks.bench_pressure.workload import MAX_CHILDREN, MAX_MODEL_LEN, PROMISE, SYNC, Request
from sequence_hooks.config.choices import BlockedKVPolicy
from vllm import RequestOutput, SamplingParams
from vllm.config import SpecialKwargs
from vllm.engine.arg_utils import EngineArgs
from vllm.engine.llm_engine import LLMEngine

OFF = "hooks off"
POLICIES: tuple[BlockedKVPolicy, ...] = get_args(BlockedKVPolicy)
SIDES = (OFF, *POLICIES)
FIXED = tuple(policy for policy in POLICIES if policy != "auto")
BLOCK_SIZE = 16
MAX_BATCHED_TOKENS = 1024


@dataclass
class Measured:
    """One run of all requests."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of all threads."""

    sampled: int = 0
    """Sampled tokens."""

    scheduled: int = 0
    """Scheduled tokens of all steps; recomputed ones count again."""

    steps: int = 0
    peak_blocks: int = 0
    preemptions: int = 0
    evictions: int = 0
    schedule_seconds: float = 0.0
    model_seconds: float = 0.0

    @property
    def throughput(self) -> float:
        """Sampled tokens per second."""
        return self.sampled / self.seconds

    @property
    def cpu_throughput(self) -> float:
        """Sampled tokens per second of CPU time, which other work on the machine changes only a little."""
        return self.sampled / self.cpu_seconds


class Side:
    """An engine, with or without hooks, and the requests in the form that it gets."""

    def __init__(self, name: str, model: Path, requests: Sequence[Request], num_blocks: int) -> None:
        hooks = None if name == OFF else _hooks(name)
        self.name = name
        self._requests = requests if hooks else [request.in_sequence() for request in requests]
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                str(model),
                dtype="float32",
                enforce_eager=True,
                disable_log_stats=True,
                use_tqdm_on_load=False,
                block_size=BLOCK_SIZE,
                max_model_len=MAX_MODEL_LEN,
                num_gpu_blocks_override=num_blocks,
                max_num_seqs=min(MAX_BATCHED_TOKENS, len(requests) * (1 + MAX_CHILDREN)),
                max_num_batched_tokens=MAX_BATCHED_TOKENS,
                enable_chunked_prefill=True,
                enable_prefix_caching=False,
                special_kwargs=hooks,
            )
        )
        self._measured = Measured()
        self._observe()

    def run(self) -> Measured:
        """Give the engine all requests at once, and step until it is empty."""
        measured = self._measured = Measured(sampled=sum(len(request.sampled) for request in self._requests))
        preemptions, evictions = self._num_preemptions(), self._num_evictions()
        for index, request in enumerate(self._requests):
            self._engine.add_request(f"r{index}", {"prompt_token_ids": list(request.prompt)}, _params(request))
        sampled: dict[str, tuple[int, ...]] = {}
        start, cpu_start = time.perf_counter(), time.process_time()
        while self._engine.has_unfinished_requests():
            sampled |= {done.request_id: _sampled(done) for done in self._engine.step() if done.finished}
        measured.seconds, measured.cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        measured.preemptions = self._num_preemptions() - preemptions
        measured.evictions = self._num_evictions() - evictions
        if sampled != {f"r{index}": request.sampled for index, request in enumerate(self._requests)}:
            raise RuntimeError(f"{self.name} sampled other tokens than the script has")
        return measured

    def _observe(self) -> None:
        """Have every step add its figures to the current measurement."""
        (scheduler,), executor = self._engine.scheduler, self._engine.model_executor
        manager, schedule, execute = scheduler.block_manager, scheduler.schedule, executor.execute_model

        @wraps(schedule)
        def observed_schedule() -> Any:
            start = time.perf_counter()
            scheduled = schedule()
            measured = self._measured
            measured.schedule_seconds += time.perf_counter() - start
            measured.steps += 1
            measured.scheduled += scheduled[1].num_batched_tokens
            used = manager.num_total_gpu_blocks - manager.get_num_free_gpu_blocks()
            measured.peak_blocks = max(measured.peak_blocks, used)
            return scheduled

        @wraps(execute)
        def observed_execute(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            output = execute(*args, **kwargs)
            self._measured.model_seconds += time.perf_counter() - start
            return output

        scheduler.schedule, executor.execute_model = observed_schedule, observed_execute

    def _num_preemptions(self) -> int:
        return self._engine.scheduler[0].num_cumulative_preemption

    def _num_evictions(self) -> int:
        (scheduler,) = self._engine.scheduler
        return 0 if self.name == OFF else scheduler.evictor.evictions.total()


def _hooks(policy: str) -> SpecialKwargs:
    return SpecialKwargs(
        promise_token_id=PROMISE,
        sync_token_id=SYNC,
        block_on="sync",
        merge_separator="",
        max_children=MAX_CHILDREN,
        blocked_kv_policy=policy,  # type: ignore[arg-type]
    )


def _params(request: Request) -> SamplingParams:
    """Each sequence of a request ends with its EOS."""
    return SamplingParams(temperature=0.0, max_tokens=MAX_MODEL_LEN, logits_processors=[request], detokenize=False)


def _sampled(done: RequestOutput) -> tuple[int, ...]:
    (output,) = done.outputs
    spans = [segment for segment in output.segments if segment.origin == "sampled"]
    own = [output.token_ids[span.start : span.end] for span in spans] or [output.token_ids]
    return tuple(chain(*own, *(child.token_ids for child in output.children)))
