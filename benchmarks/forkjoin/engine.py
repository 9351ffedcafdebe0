# SPDX-License-Identifier: Apache-2.0
"""An engine of whichever vLLM is installed for this interpreter, with each of its steps timed.

It runs in pristine upstream's environment too, so nothing here needs this fork.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.forkjoin.plans import Script
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.engine.llm_engine import LLMEngine

LONGEST = 16000
"""In tokens; a scripted sequence ends earlier, with its EOS."""


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

    ends: dict[str, float] = field(default_factory=dict)
    """When each request ended, in seconds since the start."""

    elsewhere: float = 0.0
    """Cores that other processes kept busy during the run."""


def _nothing(request_id: str, output: tuple[int, ...]) -> None:
    """Ignore an output, as most ways do."""


class Observed(ABC):
    """An engine whose steps are recorded in the current `Run`."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._engine: Any = LLMEngine.from_engine_args(
            EngineArgs(enforce_eager=True, disable_log_stats=True, use_tqdm_on_load=False, seed=0, **arguments)
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

    def add(
        self, request_id: str, prompt: Iterable[int], script: Script, max_tokens: int = LONGEST, **limits: Any
    ) -> None:
        """Add a request that samples what ``script`` says.

        Args:
            limits: Of its tree, see `sequence_hooks.config.limits.Limits`.
        """
        self._add(request_id, prompt, self._scripted(script, max_tokens, limits))

    def add_greedy(self, request_id: str, prompt: Iterable[int], length: int) -> None:
        """Add a request that samples ``length`` tokens of the model's choice."""
        self._add(request_id, prompt, SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True))

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
                self.run.ends[output.request_id] = now - self._started
                outputs[output.request_id] = tuple(output.outputs[0].token_ids)
                then(output.request_id, outputs[output.request_id])
        return outputs

    def _add(self, request_id: str, prompt: Iterable[int], params: SamplingParams) -> None:
        self._engine.add_request(request_id, {"prompt_token_ids": list(prompt)}, params)

    @abstractmethod
    def _scripted(self, script: Script, max_tokens: int, limits: dict[str, Any]) -> SamplingParams:
        """The parameters of a request that samples what ``script`` says."""

    @abstractmethod
    def _observe(self) -> None:
        """Let the engine record its steps."""
