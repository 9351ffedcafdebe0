# SPDX-License-Identifier: Apache-2.0
"""One history of the fuzzer on an engine."""

from functools import cached_property

import torch

from mytests.fuzz.deltas import Stream
from mytests.fuzz.history import History, Request
from mytests.harness.histories import EngineDriver
from vllm import RequestOutput

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
        self._lengths: dict[str, int] = {}
        self._last_progress = 0
        # The global seed, for requests that are sampled without their own.
        torch.manual_seed(random_seed)

    @cached_property
    def requests(self) -> dict[str, Request]:
        """The requests by id."""
        return {f"r{index}": request for index, request in enumerate(self.history.requests)}

    @property
    def outputs(self) -> dict[str, RequestOutput]:
        """The final outputs of finished requests, with the contents of all their outputs."""
        return {name: stream.final for name, stream in self.streams.items() if stream.final is not None}

    def finish(self) -> None:
        """Step until all requests have finished.

        Raises:
            AssertionError: if it hangs, something is left in the engine, or an output is missing.
        """
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
        if lengths != self._lengths:
            self._lengths, self._last_progress = lengths, self.steps
        assert self.steps - self._last_progress < PATIENCE, f"no token in {PATIENCE} steps; lengths are {lengths}"
