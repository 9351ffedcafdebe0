# SPDX-License-Identifier: Apache-2.0
"""An engine in this process, whose steps are counted and timed as it schedules them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from statistics import median
from typing import Any

from benchmarks.device.plan import Cell
from benchmarks.device.script import EOS
from benchmarks.device.ways import Prompt, Sample, Tokens


@dataclass(frozen=True)
class Step:
    """One step, when it was scheduled.

    Attributes:
        kv_tokens: Tokens of all contexts, each of which is read.
    """

    at: float
    num_seqs: int
    num_tokens: int
    kv_tokens: int


@dataclass
class Steps:
    """The steps of a run.

    Attributes:
        kv_once: Tokens in the blocks of all children of a step in which all decode, each block counted once. It is
            counted in one step only, since that takes longer than a step should.
    """

    all: list[Step] = field(default_factory=list)
    kv_once: int = 0

    def decoding(self, cell: Cell) -> tuple[float, float]:
        """Of the steps in which all children decode, and nothing else: the median seconds, and tokens of KV read."""
        width = cell.children * cell.trees
        ours = [step.num_seqs == step.num_tokens == width for step in self.all]
        pairs = zip(self.all, self.all[1:], ours, ours[1:], strict=False)
        found = [(after.at - step.at, step.kv_tokens) for step, after, one, other in pairs if one and other]
        if not found:
            return 0.0, 0.0
        return median(seconds for seconds, _ in found), median(tokens for _, tokens in found)


class InProcess:
    """An engine with hooks, if ``hooks`` are given, or a stock one."""

    def __init__(self, hooks: dict[str, Any] | None, arguments: dict[str, Any]) -> None:
        import benchmarks.device.model  # noqa: F401
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        if hooks is not None:
            from sequence_hooks.v1 import engine_args

            arguments = engine_args(hooks, **arguments)
        self._engine: Any = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self._waiting: dict[str, asyncio.Future[Tokens]] = {}
        self._names = count()
        self._steps = Steps()
        self._width = 0
        self._observe()

    @property
    def config(self) -> Any:
        """Upstream's configuration, as it came to be."""
        return self._engine.vllm_config

    def run(self, work: Callable[[Sample], Awaitable[None]], cell: Cell) -> tuple[float, Steps]:
        """The seconds and the steps of ``work``, with nothing in the prefix cache before."""
        self._engine.reset_prefix_cache()
        self._steps, self._width = Steps(), cell.children * cell.trees
        start = time.perf_counter()
        asyncio.run(self._drive(work))
        return time.perf_counter() - start, self._steps

    async def _drive(self, work: Callable[[Sample], Awaitable[None]]) -> None:
        task = asyncio.ensure_future(work(self._sample))
        while not task.done():
            # Whoever has got an output makes its next request before the next step.
            for _ in range(3):
                await asyncio.sleep(0)
            for output in self._engine.step() if self._engine.has_unfinished_requests() else ():
                if output.finished:
                    self._waiting.pop(output.request_id).set_result(tuple(output.outputs[0].token_ids))
        await task

    async def _sample(self, prompt: Prompt, max_tokens: int, stop: int = EOS) -> Tokens:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, stop_token_ids=[stop], detokenize=False)
        name = f"request-{next(self._names)}"
        self._waiting[name] = asyncio.get_running_loop().create_future()
        self._engine.add_request(name, {"prompt_token_ids": list(prompt)}, params)
        return await self._waiting[name]

    def _observe(self) -> None:
        scheduler = self._engine.engine_core.engine_core.scheduler
        schedule = scheduler.schedule

        @wraps(schedule)
        def observed(*args: Any, **kwargs: Any) -> Any:
            at = time.perf_counter()
            scheduled = schedule(*args, **kwargs)
            tokens = scheduled.num_scheduled_tokens
            if tokens:
                running = [scheduler.requests[name] for name in tokens if name in scheduler.requests]
                kv_tokens = sum(request.num_computed_tokens for request in running)
                self._steps.all.append(Step(at, len(tokens), scheduled.total_num_scheduled_tokens, kv_tokens))
                if not self._steps.kv_once and len(tokens) == scheduled.total_num_scheduled_tokens == self._width:
                    self._steps.kv_once = self._tokens_once(scheduler.kv_cache_manager, tokens)
            return scheduled

        scheduler.schedule = observed

    def _tokens_once(self, manager: Any, names: Any) -> int:
        blocks = {block for name in names for block in manager.get_block_ids(name)[0]}
        return len(blocks) * int(self.config.cache_config.block_size)
