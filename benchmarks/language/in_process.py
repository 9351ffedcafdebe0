# SPDX-License-Identifier: Apache-2.0
"""An engine in this process, stepped by hand, so that each step's tokens and time are known."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from benchmarks.language.measure import Step
from benchmarks.language.requests import Answered, Wanted
from sequence_hooks.v1 import engine_args
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.llm_engine import LLMEngine


@dataclass
class _Open:
    """A request that runs."""

    done: "asyncio.Future[Answered]"
    tells_lines: bool
    """Whether a reader sees an outline's first line once it is whole, and then what children write."""

    token_ids: list[int] = field(default_factory=list)
    first: float = 0.0
    expanded: float = 0.0


_IDLE_SECONDS = 0.001


class InProcess:
    """Answers requests by an engine of its own, which needs ``VLLM_ENABLE_V1_MULTIPROCESSING=0``."""

    def __init__(self, model: str, special_kwargs: Any, **arguments: Any) -> None:
        given = engine_args(special_kwargs, model=model, enforce_eager=True, seed=0, **arguments)
        self._engine: Any = LLMEngine.from_engine_args(EngineArgs(**given))
        self.tokenizer: Any = self._engine.get_tokenizer()
        self.steps: list[Step] = []
        self._open: dict[str, _Open] = {}
        self._num_requests = 0
        self._stepping: asyncio.Task[None] | None = None
        self._observe()

    async def forget(self, before: Wanted) -> None:
        """Begin anew, without steps; see `Caller`."""
        self._engine.reset_prefix_cache()
        await self.call(before)
        self.steps.clear()

    async def call(self, wanted: Wanted) -> Answered:
        """The answer to one request; see `Caller`."""
        self._num_requests += 1
        name = str(self._num_requests)
        self._open[name] = _Open(asyncio.get_running_loop().create_future(), bool(wanted.question))
        self._engine.add_request(name, {"prompt_token_ids": list(wanted.prompt)}, _params(wanted))
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._step_until_idle())
            self._stepping.add_done_callback(self._fail)
        return await self._open[name].done

    async def _step_until_idle(self) -> None:
        while self._engine.has_unfinished_requests():
            self.steps.append(Step())
            start = time.perf_counter()
            outputs = self._engine.step()
            self.steps[-1].seconds = time.perf_counter() - start
            for output in outputs:
                self._take(output)
            # Who has got an answer goes on before the next step. A step with nothing to do waits for a grammar, which
            # upstream compiles in a thread of this process; its own loop waits as long.
            await asyncio.sleep(0 if self.steps[-1].num_seqs else _IDLE_SECONDS)

    def _fail(self, stepping: "asyncio.Task[None]") -> None:
        """Whoever waits for an answer gets the error of a step."""
        error = stepping.exception()
        for request in self._open.values() if error else ():
            request.done.set_exception(error or RuntimeError())

    def _take(self, output: Any) -> None:
        request = self._open[output.request_id]
        # An output may have nothing but what children have sampled.
        new = [token_id for completion in output.outputs for token_id in completion.token_ids]
        request.token_ids += new
        now = time.perf_counter()
        if not request.first and new and (not request.tells_lines or "\n" in self.tokenizer.decode(request.token_ids)):
            request.first = now
        expands = new if not request.tells_lines else any(delta.token_ids for delta in output.child_deltas)
        if not request.expanded and expands:
            request.expanded = now
        if output.finished:
            request.done.set_result(_answered(self._open.pop(output.request_id), output.outputs[0]))

    def _observe(self) -> None:
        scheduler = self._engine.engine_core.engine_core.scheduler
        schedule = scheduler.schedule

        @wraps(schedule)
        def observed(*args: Any, **kwargs: Any) -> Any:
            scheduled = schedule(*args, **kwargs)
            self.steps[-1].num_tokens += scheduled.total_num_scheduled_tokens
            self.steps[-1].num_seqs += len(scheduled.num_scheduled_tokens)
            return scheduled

        scheduler.schedule = observed


def _params(wanted: Wanted) -> SamplingParams:
    return SamplingParams(
        temperature=0.0,
        max_tokens=wanted.max_tokens,
        min_tokens=wanted.max_tokens if wanted.has_length else 0,
        ignore_eos=wanted.has_length,
        stop=list(wanted.stop),
        stop_token_ids=list(wanted.stop_token_ids),
        structured_outputs=StructuredOutputsParams(regex=wanted.regex) if wanted.regex else None,
        extra_args=dict(wanted.arguments) or None,
        output_kind=RequestOutputKind.DELTA,
    )


def _answered(request: _Open, completion: Any) -> Answered:
    segments: Sequence[Any] = getattr(completion, "segments", ())
    replaced = sum(each.end - each.start for each in segments if each.is_replaced)
    children, joins = getattr(completion, "children", ()), getattr(completion, "joins", ())
    num_outline = num_closing = 0
    if joins:
        start, end = joins[-1].position, joins[-1].position + joins[-1].num_merged
        sampled = [each for each in segments if each.origin == "sampled"]
        num_outline = sum(each.end - each.start for each in sampled if each.start < start)
        num_closing = len(request.token_ids) - end
    return Answered(
        tuple(request.token_ids[replaced:]),
        request.first or time.perf_counter(),
        request.expanded or time.perf_counter(),
        num_outline,
        sum(len(child.prefix_token_ids) for child in children),
        tuple(child.spawn_position for child in children),
        tuple(tuple(child.token_ids) for child in children),
        num_closing,
    )
