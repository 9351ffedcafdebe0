# SPDX-License-Identifier: Apache-2.0
"""One history of the fuzzer on an engine, and counts of what was seen."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch

from mytests.fuzz.architectures import LLAMA
from mytests.fuzz.history import History, Request
from mytests.fuzz.injection_oracle import Layout
from mytests.fuzz.outputs import Stream
from mytests.fuzz.tree import Node
from mytests.harness.dialect import DIALECT
from mytests.harness.installed import IS_V1
from vllm import RequestOutput

if IS_V1:
    from mytests.harness.v1.driver import V1Driver as EngineDriver
else:
    from mytests.harness.v0.driver import V0Driver as EngineDriver

PATIENCE = 150
"""The number of steps without a new token in any sequence that counts as a hang."""


class Run:
    """One history on an engine of its own."""

    def __init__(self, history: History, random_seed: int = 0) -> None:
        self.history = history
        self.driver = EngineDriver(history.setup)
        self.engine = self.driver.engine
        self.streams = {name: Stream(name, request.params.stream) for name, request in self.requests.items()}
        self.aborted: list[str] = []
        self.steps = 0
        self._progress: tuple[dict[str, int], list[int]] = {}, []
        self._last_progress = 0
        # The global seed, for requests that are sampled without their own.
        torch.manual_seed(random_seed)

    @cached_property
    def requests(self) -> dict[str, Request]:
        return {f"r{index}": request for index, request in enumerate(self.history.requests)}

    @property
    def outputs(self) -> dict[str, RequestOutput]:
        """The final outputs of finished requests, with the contents of all their outputs."""
        return {name: stream.final for name, stream in self.streams.items() if stream.final is not None}

    def finish(self) -> None:
        """Step until all requests have finished, without a hang; then nothing is left, and no output is missing."""
        last_arrival = max(request.arrival for request in self.history.requests)
        while self.steps <= last_arrival or self.driver.has_unfinished():
            self._step()
            self._check_progress()
        self.driver.assert_empty()
        assert set(self.outputs) - set(self.aborted) == set(self.requests) - set(self.aborted)

    def _step(self) -> None:
        for request_id, request in self.requests.items():
            if request.arrival == self.steps:
                self.driver.add(request_id, request, self.history.plan(request))
        for abort in self.history.aborts:
            if abort.step == self.steps and (live := sorted(self.driver.lengths())):
                self.aborted.append(self.driver.abort(live[abort.place % len(live)]))
        for output in self.driver.step():
            self.streams[output.request_id].take(output)
        self.driver.check_integrity()
        self.steps += 1

    def _check_progress(self) -> None:
        lengths = self.driver.lengths()
        # A join may replace as many tokens of a context as were sampled since the last one.
        progress = lengths, [branch.num_sampled for branch in self.driver.scheduler.trees.branches]
        if progress != self._progress:
            self._progress, self._last_progress = progress, self.steps
        assert self.steps - self._last_progress < PATIENCE, f"no token in {PATIENCE} steps; lengths are {lengths}"


MIN_HISTORIES, MIN_JOINS = 20, 20
"""With fewer, a result means nothing: a typical history has three joins."""

KINDS = (
    *("discards", "aborted", "with_adapters", "with_grammars", "sampled", "with_other_parameters", "streams"),
    *("forks_by_text", "cancelled", "joined_by_name", "replaced", "of_other_models"),
    *(("taken_back",) if any(DIALECT.speculation) else ()),
    *(("loaded",) if DIALECT.connected else ()),
)
"""What a run must have seen before it means anything that no fault was found."""


@dataclass
class Tally:
    """Counts of what was seen."""

    histories: int = 0
    sequences: int = 0
    joins: int = 0
    preemptions: int = 0
    discards: int = 0
    """BLOCKED sequences that gave up KV; there is no swap space."""

    tokens_given_up: int = 0
    """By them and by preempted sequences, to be recomputed."""

    joins_after_loss: int = 0
    """Of parents that had given up some or all of their KV."""

    aborted: int = 0
    steps: int = 0
    with_adapters: int = 0
    """Requests, as in all fields below, without the aborted ones."""

    with_grammars: int = 0
    """Including those whose children have one."""

    sampled: int = 0
    with_other_parameters: int = 0
    streams: int = 0
    forks_by_text: int = 0
    cancelled: int = 0
    joined_by_name: int = 0
    replaced: int = 0
    of_other_models: int = 0
    taken_back: int = 0
    """Drafts that were accepted after a token that has blocked or ended its sequence."""

    loaded: int = 0
    in_stages: int = 0
    injected: int = 0
    lost_injected: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, f.name)} {f.name.replace('_', ' ')}" for f in fields(self))

    @property
    def unseen(self) -> list[str]:
        """The kinds of histories that were not seen yet, and joins if there were too few to see faults in them."""
        rare = ["joins"] if self.joins <= MIN_JOINS else []
        return rare + [name for name in KINDS if not getattr(self, name)]

    @property
    def shortage(self) -> str | None:
        """What was seen too rarely to mean anything; None if enough was seen."""
        if self.histories < MIN_HISTORIES:
            return f"{self.histories} histories are too few to mean anything: fewer than {MIN_HISTORIES}"
        if self.joins < MIN_JOINS:
            return f"{self.joins} joins are too few to mean anything: fewer than {MIN_JOINS}"
        return None


def count(run: Run, roots: Sequence[Node], injected: Sequence[Layout]) -> Tally:
    """Count what was seen in a run, in its trees, and in their layouts if KV was injected."""
    evictor, history = run.driver.scheduler.evictor, run.history
    layouts = [layout for root in injected for layout in root.walk()]
    nodes = [node for root in roots for node in root.walk()]
    joins = [join for node in nodes for join in node.output.joins]
    done = [run.requests[name] for name in run.outputs if name not in run.aborted]
    params = [(request.params, history.params_of_children(request)) for request in done]
    return Tally(
        histories=1,
        sequences=len(nodes),
        joins=sum(join.num_merged > 0 for join in joins),
        preemptions=run.driver.num_preemptions(),
        discards=evictor.evictions["discard"],
        tokens_given_up=evictor.num_recomputed,
        joins_after_loss=sum(join.num_prefill > join.num_merged + 1 for join in joins),
        aborted=len(run.aborted),
        steps=run.steps,
        with_adapters=sum(request.adapter > 0 for request in done),
        with_grammars=sum(any(each.grammar for each in both) for both in params),
        sampled=sum(any(each.temperature > 0 for each in both) for both in params),
        with_other_parameters=sum(not all(each.is_plain for each in both) for both in params),
        streams=sum(request.params.stream == "DELTA" for request in done),
        forks_by_text=sum(node.depth > 0 for node in nodes) * bool(history.setup.promise_text),
        cancelled=sum(node.is_cancelled for node in nodes),
        joined_by_name=sum(join.num_merged > 0 for join in joins) * bool(history.setup.names),
        replaced=sum(join.num_replaced > 0 for join in joins),
        of_other_models=len(done) * (history.setup.architecture != LLAMA),
        taken_back=run.driver.num_taken_back(),
        loaded=run.driver.num_loaded(),
        in_stages=len(done) * (history.setup.num_stages > 1),
        injected=sum(layout.num_injected for layout in layouts),
        lost_injected=sum(layout.has_lost_injected for layout in layouts),
    )
