# SPDX-License-Identifier: Apache-2.0
"""One history of the fuzzer on an engine."""

from functools import cached_property

import torch

from mytests.fuzz_adapters import lora_request
from mytests.fuzz_deltas import Stream
from mytests.fuzz_history import History, Request
from vllm import RequestOutput
from vllm.engine.llm_engine import LLMEngine
from vllm.sequence import SequenceGroup

PATIENCE = 150
"""The number of steps without a new token in any sequence that counts as a hang."""


class Run:
    """One history on an engine of its own."""

    def __init__(self, history: History, random_seed: int = 0) -> None:
        self.history = history
        self.engine = history.setup.open()
        self.streams = {name: Stream(name, request.params.stream) for name, request in self.requests.items()}
        self.aborted: list[str] = []
        self.steps = 0
        self._lengths: list[tuple[str, int]] = []
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
                self.aborted.append(self._id_of(live[abort.place % len(live)].request_id))
                self.engine.abort_request(self.aborted[-1])
        for output in self.engine.step():
            self.streams[output.request_id].take(output)
        if not self.engine.scheduler_contexts[0].output_queue:
            # Every sampled token has been processed.
            self.engine.scheduler[0].check_integrity()
        self.steps += 1

    def _check_progress(self) -> None:
        lengths = [(group.request_id, group.first_seq.get_len()) for group in self._live()]
        if lengths != self._lengths:
            self._lengths, self._last_progress = lengths, self.steps
        assert self.steps - self._last_progress < PATIENCE, f"no token in {PATIENCE} steps; lengths are {lengths}"

    def _add(self, request_id: str, request: Request) -> None:
        self.engine.add_request(
            request_id,
            {"prompt_token_ids": request.prompt},
            request.params.sampling(request.max_tokens, self.history.plan(request)),
            lora_request=lora_request(request.adapter),
            priority=request.priority,
        )

    def _id_of(self, group_id: str) -> str:
        """The id that a client would abort: its whole request instead of a sample, whose id it does not know."""
        name, _, sample = group_id.partition("_parallel_sample_")
        return name if sample.isdigit() else group_id

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
    assert (engine.seq_id_to_seq_group, scheduler.trees.has_unsettled) == ({}, False)
    scheduler.check_integrity()
    assert list(scheduler.trees.branches) == []
    assert (tracker._seq_id_to_blocks_hashes, tracker._seq_id_to_num_tokens_computed) == ({}, {})
    assert scheduler._finished_at_join == []
    assert not any(context.output_queue for context in engine.scheduler_contexts)
    assert manager.get_num_free_gpu_blocks() == manager.num_total_gpu_blocks
