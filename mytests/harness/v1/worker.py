# SPDX-License-Identifier: Apache-2.0
"""A worker without a model: it checks what every slot of KV holds, and samples scripted tokens.

It knows only what upstream's scheduler tells it, in the way of either of upstream's model runners: "first" keeps what
it has sampled, and learns tokens from new requests and from resumed ones; "second" learns all tokens whenever a request
gets a row. Copies and positions of injected KV are what the plug-in makes of them beside such a runner.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mytests.harness.kv import PretendedKV
from mytests.harness.v1.drafts import Choose, Drafter
from mytests.harness.v1.layers import Drafts, Found, Pages, PretendedStates, first_seen, is_state
from mytests.harness.v1.runners import FirstRunner, SecondRunner
from sequence_hooks.kv.transfer import SlotCopy
from sequence_hooks.v1.wire import injected_by
from sequence_hooks.v1.worker import block_copies
from sequence_hooks.v1.worker.injector import Injector, install
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput


@dataclass
class SimulatedWorker:
    """The context of each request that has a row is in ``tokens``, and its block tables, one a group, in ``tables``."""

    num_blocks: int
    block_size: int
    layers: Sequence[str] = ("full",)
    """One of each group, by its name in `mytests.harness.v1.layers`."""

    prompts: dict[str, list[int]] | None = None
    """If given, the prompt of each request at its first step is kept here."""

    learns_by_session: bool = False
    """Whether a request that has a row may be given anew, as the "first" runner learns of a session's next prompt."""

    injects: bool = False
    """Whether KV of children may be injected."""

    drafter: Drafter = field(default_factory=Drafter)
    carrier: Any = None
    """Loads and saves KV, if the engine has a connector."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    tables: dict[str, list[list[int]]] = field(default_factory=dict)
    copies: list[tuple[int, int]] = field(default_factory=list)
    asked_for_prompt_logprobs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.caches = [
            PretendedStates(self.block_size, layer == "checkpointed")
            if is_state(layer)
            else PretendedKV(self.block_size)
            for layer in self.layers
        ]
        # That of the first layer with attention, if there is any.
        self.kv = next((kv for _, _, kv in self._attention), PretendedKV(self.block_size))
        self.runner = FirstRunner() if self.learns_by_session else SecondRunner()
        self._found: dict[str, Found] = {}
        self._pages = Pages(self.num_blocks, self.layers)
        self.runner.kv_caches = self._pages.views
        self.runner.kv_cache_config = SimpleNamespace(num_blocks=self.num_blocks)
        block_copies.attach(self.runner)
        if self.injects:
            install(Injector(self, torch.device("cpu")), self.runner)

    @property
    def _attention(self) -> Iterator[tuple[int, str, PretendedKV]]:
        """The index, name and cache of each layer with attention."""
        for group, (layer, cache) in enumerate(zip(self.layers, self.caches, strict=True)):
            if isinstance(cache, PretendedKV):
                yield group, layer, cache

    def run(self, output: SchedulerOutput, choose: Choose) -> ModelRunnerOutput:
        """Execute one step; each token has to find its context in the slots, and samplers their positions."""
        for request_id in output.finished_req_ids | (output.preempted_req_ids or set()):
            self.tokens.pop(request_id, None)
            self.tables.pop(request_id, None)
            self._found.pop(request_id, None)
            for _, _, kv in self._attention:
                kv.forget(request_id)
        if self.carrier is not None:
            self.carrier.before(output.kv_connector_metadata)
        for cache in self.caches:
            cache.zero_blocks(output.new_block_ids_to_zero or ())
        self._copy_blocks([(copy.src_block_id, copy.dst_block_id) for copy in output.kv_cache_block_copies or ()])
        if self.carrier is not None:
            self.carrier.load(output.kv_connector_metadata)
        assert self.injects or injected_by(output) is None
        self.runner.take_in(output)
        starts = self._take(output)
        self.drafter.take_in(output.scheduled_spec_decode_tokens)
        # A batch is computed layer by layer: all write before any of them reads.
        positions = self.runner.prepare(output, starts).tolist()
        ends = list(accumulate(output.num_scheduled_tokens.values()))
        for (request_id, count), end in zip(output.num_scheduled_tokens.items(), ends, strict=True):
            self._write(request_id, starts[request_id], positions[end - count : end])
        self._check_sampled(output, starts, ends)
        ids, sampled = [], []
        for request_id, count in output.num_scheduled_tokens.items():
            ids.append(request_id)
            sampled.append(self._read(request_id, starts[request_id], count, choose))
            self.drafter.propose(request_id, self.tokens[request_id], choose)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=_logprobs(sampled),
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=None if self.carrier is None else self.carrier.after(output.kv_connector_metadata),
        )

    def _take(self, output: SchedulerOutput) -> dict[str, int]:
        starts = {}
        for new in output.scheduled_new_reqs:
            assert new.prompt_token_ids is not None and new.sampling_params is not None
            if self.prompts is not None:
                self.prompts.setdefault(new.req_id, list(new.prompt_token_ids))
            if new.sampling_params.prompt_logprobs is not None:
                self.asked_for_prompt_logprobs.append(new.req_id)
            # A row that was not freed first would be one too many.
            assert self.learns_by_session or new.req_id not in self.tokens, f"{new.req_id} has a row already"
            known = new.prompt_token_ids if new.prefill_token_ids is None else new.prefill_token_ids
            self.tokens[new.req_id] = list(known)
            self.tables[new.req_id] = [list(blocks) for blocks in new.block_ids]
            starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            blocks = cached.new_block_ids[index]
            if request_id in cached.resumed_req_ids:
                self.tokens[request_id] = list(cached.all_token_ids[request_id])
                assert blocks is not None
                self.tables[request_id] = [list(each) for each in blocks]
            elif blocks is not None:
                for table, new_blocks in zip(self.tables[request_id], blocks, strict=True):
                    table += new_blocks
            # With drafts in flight, upstream's scheduler counts those that are rejected meanwhile.
            starts[request_id] = min(cached.num_computed_tokens[index], len(self.tokens[request_id]) - 1)
        return starts

    def _copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """All are read before any is written."""
        self.copies += pairs
        if pairs:
            self._pages.copy_blocks(self.runner.kv_caches, pairs)
        for cache in self.caches:
            cache.copy_blocks(pairs)

    def copy(self, slot_copies: torch.Tensor) -> None:
        """Copy what slots hold, as a `sequence_hooks.v1.worker.injector.Copier`."""
        self.kv.inject([SlotCopy(*row) for row in slot_copies.tolist()])

    def _write(self, request_id: str, start: int, positions: list[int]) -> None:
        tokens, end = self.drafter.with_drafts(request_id, self.tokens[request_id]), start + len(positions)
        assert end <= len(tokens), f"{request_id} computes {start} to {end} of {len(tokens)} tokens"
        for group, _, kv in self._attention:
            kv.compute(tokens, self.tables[request_id][group], start, positions)

    def _check_sampled(self, output: SchedulerOutput, starts: dict[str, int], ends: list[int]) -> None:
        """`min_tokens` and random numbers depend on the positions that a sampler reads, which know no injected KV."""
        sampled_at = self.runner.sample()
        if sampled_at is not None:
            counts = output.num_scheduled_tokens.items()
            read = {name: int(sampled_at[end - 1]) for name, end in zip(output.num_scheduled_tokens, ends, strict=True)}
            assert read == {name: starts[name] + count - 1 for name, count in counts}

    def _read(self, request_id: str, start: int, count: int, choose: Choose) -> list[int]:
        tokens, end = self.tokens[request_id], start + count
        tables, written = self.tables[request_id], self.drafter.with_drafts(request_id, tokens)
        for group, layer, kv in self._attention:
            kv.check(request_id, written[:end], tables[group], start, first_seen(layer, start))
        run = self.drafter.accept(request_id, tokens, choose) if end >= len(tokens) else []
        self._compute_states(request_id, start, written[:end], len(run))
        tokens += run
        return run

    def _compute_states(self, request_id: str, start: int, tokens: list[int], num_sampled: int) -> None:
        state_at = self.runner.find_state(request_id, start, len(tokens), self.block_size)
        drafts = Drafts(len(self.drafter.scheduled.get(request_id, ())), max(num_sampled, 1))
        before, after = self._found.pop(request_id, Found(state_at)), Found(state_at)
        for table, cache in zip(self.tables[request_id], self.caches, strict=True):
            if not isinstance(cache, PretendedStates):
                continue
            if self.drafter.num_drafts:
                after = cache.compute_with_drafts(request_id, tokens, table, start, before, drafts)
            else:
                cache.compute(request_id, tokens, table, start, state_at)
        if self.drafter.num_drafts:
            self._found[request_id] = after


def _logprobs(sampled: list[list[int]]) -> LogprobsLists:
    """One entry for each token, and one for a request that samples none: itself alone, with -1.0."""
    rows = [each or [0] for each in sampled]
    ids = np.array([token for row in rows for token in row]).reshape(-1, 1)
    starts = [0, *accumulate(map(len, rows))]
    return LogprobsLists(ids, np.full(ids.shape, -1.0), np.ones(len(ids)), starts)
