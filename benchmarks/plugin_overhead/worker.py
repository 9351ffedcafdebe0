# SPDX-License-Identifier: Apache-2.0
"""One engine whose steps are timed on demand: ``python -m benchmarks.plugin_overhead.worker ARGUMENTS HOOKS``.

Reads a command a line, such as ``["time", 20]``, and answers each with a line of JSON. The engine's core and its front
end run in this process, and each step's outputs are streamed, so that a step has all that the plug-in does.
"""

import gc
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from sequence_hooks.v1 import engine_args
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

NUM_WARM = 8
PROMPT = 24
FIRST_TOKEN = 10
"""Prompts have no token below it: these may be special."""


class Bench:
    """An engine and its requests, all of which decode. Each public method is a command."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        core: Any = engine.engine_core
        self._scheduler = core.engine_core.scheduler
        self._names: list[str] = []

    def begin(self, num_requests: int) -> None:
        """Start so many requests, and step until all decode."""
        draw = random.Random(num_requests)
        vocabulary = self._engine.model_config.get_vocab_size()
        length = self._engine.model_config.max_model_len - PROMPT
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=length, output_kind=RequestOutputKind.DELTA)
        self._names = [f"{num_requests}.{number}" for number in range(num_requests)]
        for name in self._names:
            prompt = [draw.randrange(FIRST_TOKEN, vocabulary) for _ in range(PROMPT)]
            self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
        for _ in range(NUM_WARM):
            outputs = self._engine.step()
        assert len(outputs) == num_requests, "all requests decode"
        gc.collect()
        gc.freeze()

    def time(self, num_steps: int) -> list[float]:
        """The processor's seconds for each of so many steps: one thread does all the work."""
        seconds = []
        for _ in range(num_steps):
            start = time.thread_time()
            self._engine.step()
            seconds.append(time.thread_time() - start)
        return seconds

    def calls(self, num_steps: int) -> float:
        """The mean number of functions that a step calls, those of C included."""
        return _calls(lambda: [self._engine.step() for _ in range(num_steps)]) / num_steps

    def end(self, num_requests: int) -> list[int]:
        """Abort all requests; return the tokens that they have sampled."""
        requests = self._scheduler.requests.values()
        assert len(requests) == num_requests, "no request has ended, and no child was spawned"
        trees = getattr(self._scheduler, "trees", None)
        assert trees is None or not list(trees.branches), "no hook token was sampled"
        sampled = {token_id for request in requests for token_id in request.output_token_ids}
        self._engine.abort_request(self._names)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return sorted(sampled)


def _calls(work: Callable[[], object]) -> int:
    number = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return number


def main() -> None:
    """Answer commands until there are no more."""
    given, hooks = map(json.loads, sys.argv[1:])
    arguments = {"enforce_eager": True, "disable_log_stats": True, **given}
    bench = Bench(LLMEngine.from_engine_args(EngineArgs(**(engine_args(hooks, **arguments) if hooks else arguments))))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        name, number = json.loads(line)
        print(json.dumps(getattr(bench, name)(number)), flush=True)


if __name__ == "__main__":
    main()
