# SPDX-License-Identifier: Apache-2.0
"""A worker without a model: it checks what every slot of KV holds, and samples scripted tokens.

It knows only what upstream's scheduler tells it, in the way of either of upstream's model runners: "v1" keeps what it
has sampled, and learns tokens from new requests and from resumed ones; "v2" learns all tokens whenever a request gets a
row.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mytests.engine.kv import PretendedKV
from sequence_hooks.v1.wire import InjectedStep, attached_step
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

Choose = Callable[[str, list[int]], int]
"""The token that a request samples after its context."""


@dataclass
class SimulatedWorker:
    """See the module's docstring.

    Attributes:
        tokens: The context of each request that has a row.
        tables: The block table of each such request.
    """

    block_size: int
    prompts: dict[str, list[int]] | None = None
    """If given, the prompt of each request at its first step is kept here."""

    learns_by_session: bool = False
    """Whether a request that has a row may be given anew, as the "v1" runner learns of a session's next prompt."""

    overlaps: bool = False
    """Whether a token's position may differ from its index."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    tables: dict[str, list[int]] = field(default_factory=dict)
    copies: list[tuple[int, int]] = field(default_factory=list)
    asked_for_prompt_logprobs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kv = PretendedKV(self.block_size)

    def run(self, output: SchedulerOutput, choose: Choose) -> ModelRunnerOutput:
        """Execute one step.

        Raises:
            AssertionError: a token is computed whose context is not in the slots that its block table names.
        """
        for request_id in output.finished_req_ids | (output.preempted_req_ids or set()):
            self.tokens.pop(request_id, None)
            self.tables.pop(request_id, None)
        for copy in output.kv_cache_block_copies or ():
            self.kv.blocks[copy.dst_block_id] = dict(self.kv.blocks.get(copy.src_block_id, {}))
            self.copies.append((copy.src_block_id, copy.dst_block_id))
        step = attached_step(output) or InjectedStep()
        self.kv.inject(step.copies)
        starts = self._take(output)
        # A batch is computed layer by layer: all write before any of them reads.
        for request_id, count in output.num_scheduled_tokens.items():
            self._write(request_id, starts[request_id], count, step.offsets.get(request_id, 0))
        ids, sampled = [], []
        for request_id, count in output.num_scheduled_tokens.items():
            ids.append(request_id)
            sampled.append(self._read(request_id, starts[request_id] + count, choose))
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=_logprobs(sampled),
            prompt_logprobs_dict={},
            pooler_output=[],
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
            self.tables[new.req_id] = list(new.block_ids[0])
            starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            blocks = cached.new_block_ids[index]
            if request_id in cached.resumed_req_ids:
                self.tokens[request_id] = list(cached.all_token_ids[request_id])
                assert blocks is not None
                self.tables[request_id] = list(blocks[0])
            elif blocks is not None:
                self.tables[request_id] += blocks[0]
            starts[request_id] = cached.num_computed_tokens[index]
        return starts

    def _write(self, request_id: str, start: int, count: int, offset: int) -> None:
        tokens, end = self.tokens[request_id], start + count
        assert end <= len(tokens), f"{request_id} computes {start} to {end} of {len(tokens)} tokens"
        self.kv.compute(tokens, self.tables[request_id], start, end, offset)

    def _read(self, request_id: str, end: int, choose: Choose) -> list[int]:
        tokens = self.tokens[request_id]
        self.kv.check(request_id, tokens[:end], self.tables[request_id], self.overlaps)
        if end < len(tokens):
            return []
        tokens.append(choose(request_id, tokens))
        return tokens[-1:]


def _logprobs(sampled: list[list[int]]) -> LogprobsLists:
    """One entry for each request: its token alone, with -1.0."""
    ids = np.array([[each[0] if each else 0] for each in sampled]).reshape(len(sampled), 1)
    return LogprobsLists(ids, np.full(ids.shape, -1.0), np.ones(len(sampled)), None)
