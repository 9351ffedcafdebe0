# SPDX-License-Identifier: Apache-2.0
"""Random histories on a real engine with sequence hooks, against transformers: `make fuzz`.

A history (`mytests.fuzz_history`) is run to its end, and then checked: the tree of each request against the
rules (`mytests.fuzz_oracle`), all tokens and logprobs against the model (`mytests.fuzz_tokens`).
"""

import argparse
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, fields
from functools import cache, cached_property
from itertools import chain
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

import mytests.environment  # noqa: F401  Before the engine is imported.
from mytests.fuzz_adapters import lora_request
from mytests.fuzz_history import SEPARATORS, Abort, History, Request, Setup, histories, model_folder
from mytests.fuzz_oracle import Rules, tree_of
from mytests.fuzz_tokens import Model
from vllm import RequestOutput, SamplingParams
from vllm.engine.llm_engine import LLMEngine
from vllm.sequence import SequenceGroup

__all__ = ["Abort", "Failure", "History", "Request", "Setup", "Tally", "fuzz", "replay"]
"""A failure's script takes all that it needs from here."""

PATIENCE = 150
"""Steps in which no sequence gets a token: a hang."""

HISTORIES_PER_ROUND = 200


@dataclass
class Tally:
    """What was seen."""

    histories: int = 0
    sequences: int = 0
    joins: int = 0
    preemptions: int = 0
    discards: int = 0
    """BLOCKED sequences that gave up KV; there is no swap space."""

    tokens_given_up: int = 0
    """By them and by the preempted, to be computed again."""

    joins_after_loss: int = 0
    """Of parents that had given up KV, some of it or all."""

    aborted: int = 0
    steps: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, f.name)} {f.name.replace('_', ' ')}" for f in fields(self))


class Failure(Exception):
    """A history that fails, as small as it could be made."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.script = f"from mytests.fuzz import Abort, History, Request, Setup, replay\n\nreplay({history!r})"


@cache
def _model(adapter: int) -> Model:
    return Model(model_folder(), adapter)


class Run:
    """One history on an engine of its own."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.engine = history.setup.open()
        self.outputs: dict[str, RequestOutput] = {}
        self.aborted: list[str] = []
        self.steps = 0
        self._lengths: list[tuple[str, int]] = []
        self._last_progress = 0

    @cached_property
    def requests(self) -> dict[str, Request]:
        """By request id."""
        return {f"r{index}": request for index, request in enumerate(self.history.requests)}

    def finish(self) -> None:
        """Step until all is done.

        Raises:
            AssertionError: it hangs, something is left in the engine, or an output is missing.
        """
        last_arrival = max(request.arrival for request in self.history.requests)
        while self.steps <= last_arrival or self.engine.has_unfinished_requests():
            self._step()
            self._check_progress()
        assert_empty(self.engine)
        assert set(self.outputs) - set(self.aborted) == set(self.requests) - set(self.aborted)

    def _step(self) -> None:
        for request_id, request in self.requests.items():
            if request.arrival == self.steps:
                self._add(request_id, request)
        for abort in self.history.aborts:
            if abort.step == self.steps and (live := self._live()):
                self.aborted.append(live[abort.place % len(live)].request_id)
                self.engine.abort_request(self.aborted[-1])
        for output in self.engine.step():
            if output.finished:
                self.outputs[output.request_id] = output
        self.steps += 1

    def _check_progress(self) -> None:
        lengths = [(group.request_id, group.first_seq.get_len()) for group in self._live()]
        if lengths != self._lengths:
            self._lengths, self._last_progress = lengths, self.steps
        assert self.steps - self._last_progress < PATIENCE, f"no token in {PATIENCE} steps; lengths are {lengths}"

    def _add(self, request_id: str, request: Request) -> None:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=request.max_tokens,
            logprobs=1,
            logits_processors=[self.history.plan(request)],
            skip_special_tokens=False,
        )
        prompt, adapter = {"prompt_token_ids": request.prompt}, lora_request(request.adapter)
        self.engine.add_request(request_id, prompt, params, lora_request=adapter)

    def _live(self) -> list[SequenceGroup]:
        scheduler = self.engine.scheduler[0]
        queues = scheduler.waiting, scheduler.running, scheduler.swapped, scheduler.blocked, scheduler.forked
        return sorted((group for queue in queues for group in queue), key=lambda group: group.request_id)


def assert_empty(engine: LLMEngine) -> None:
    """Nothing is left in any queue or map, and every block is free."""
    (scheduler,) = engine.scheduler
    manager = scheduler.block_manager
    tracker = manager._computed_blocks_tracker
    queues = scheduler.waiting, scheduler.running, scheduler.swapped, scheduler.blocked, scheduler.forked
    assert [list(queue) for queue in queues] == [[]] * 5
    assert manager.block_tables == {}, f"blocks are left of sequences {list(manager.block_tables)}"
    assert (engine.seq_id_to_seq_group, scheduler._unsettled) == ({}, {})
    assert (tracker._seq_id_to_blocks_hashes, tracker._seq_id_to_num_tokens_computed) == ({}, {})
    assert scheduler._finished_at_join == []
    assert not any(context.output_queue for context in engine.scheduler_contexts)
    assert manager.get_num_free_gpu_blocks() == manager.num_total_gpu_blocks


def replay(history: History) -> Tally:
    """Run a history and check all of it; what was seen."""
    run = Run(history)
    run.finish()
    (scheduler,), setup, roots, hooks = run.engine.scheduler, history.setup, defaultdict(list), history.setup.hooks()
    for request_id in set(run.outputs) - set(run.aborted):
        request, root = run.requests[request_id], tree_of(run.outputs[request_id])
        rules = Rules(
            hooks, setup.max_model_len, SEPARATORS[setup.separator], request.max_tokens, setup.child_max_tokens
        )
        # An abort may come between a last token and its processing: the sequence is then aborted, and ended too.
        if not (setup.async_output and run.aborted):
            rules.check(root)
        roots[request.adapter].append((root, history.plan(request)))
    nodes = [node for root, _ in chain.from_iterable(roots.values()) for node in root.walk()]
    joins = [join for node in nodes for join in node.output.joins]
    return Tally(
        histories=1,
        sequences=sum(_model(adapter).check(those) for adapter, those in roots.items()),
        joins=sum(join.num_merged > 0 for join in joins),
        preemptions=scheduler.num_cumulative_preemption,
        discards=scheduler.pressure.evictions["discard"],
        tokens_given_up=scheduler.pressure.num_recomputed,
        joins_after_loss=sum(join.num_prefill > join.num_merged + 1 for join in joins),
        aborted=len(run.aborted),
        steps=run.steps,
    )


def fuzz(seconds: float, first_seed: int, max_histories: int = sys.maxsize, shrinks: bool = True) -> Tally:
    """Try histories until the time or their number is out; what was seen.

    Raises:
        Failure: for the first that fails, made as small as it can be if ``shrinks``.
    """
    deadline, total = time.monotonic() + seconds, Tally()
    failed: list[History] = []

    def attempt(history: History) -> None:
        nonlocal total
        if not failed and (time.monotonic() > deadline or total.histories >= max_histories):
            return
        try:
            total += replay(history)
        except Exception:
            failed.append(history)
            raise

    number = 0
    while time.monotonic() < deadline and total.histories < max_histories:
        try:
            _round(attempt, first_seed * 1_000_003 + number, shrinks)
        except BaseException as error:
            raise (Failure(failed[-1]) if failed else error) from error
        number += 1
    return total


def _round(attempt: Any, number: int, shrinks: bool) -> None:
    configured = settings(
        max_examples=HISTORIES_PER_ROUND,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(configured(given(histories())(attempt)))()


def main() -> int:
    """The exit code: 1 if a history failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        print(fuzz(options.seconds, options.seed))
    except Failure as failure:
        print(f"{type(failure.__cause__).__name__}: {failure.__cause__}\n\n{failure.script}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
