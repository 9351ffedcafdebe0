# SPDX-License-Identifier: Apache-2.0
"""What a scheduler records about requests, steps and trees."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sequence_hooks.trace import events
from sequence_hooks.trace.observer import NO_RECORDER, RunRecorder
from sequence_hooks.trace.recorder import Recorder
from sequence_hooks.v1.core.sequence import params_of
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import Request

Decode = Callable[[Sequence[int], bool], str]
"""The text of tokens, with or without special ones; empty if the engine has no tokenizer."""


class SchedulerRecorder(RunRecorder):
    """Turns what happens in a scheduler into events, each noted once.

    Args:
        record_to: The file of the recording; None for none.
    """

    def __init__(self, record_to: str | None, manager: KVCacheManager, decode: Decode) -> None:
        observer = NO_RECORDER if record_to is None else Recorder(record_to)
        super().__init__(observer)
        self._pool = manager.block_pool
        self._decode = decode
        self._num_prompt_tokens: dict[str, int] = {}
        """Of each sequence whose end is not noted yet. For upstream, a join turns a whole context into the prompt."""

        self._drafts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Counts of the drafts of each such sequence, by the fields of `sequence_hooks.trace.events.Finished`."""

        block_size = manager.coordinator.single_type_managers[0].block_size
        # The first block is upstream's null block, which no request can have.
        observer.note(events.SchedulerStarted, block_size=block_size, num_blocks=self._pool.num_gpu_blocks - 1)

    def arrived(self, request: Request) -> None:
        """Note that a request, or one of its samples, is queued."""
        if self.is_recording:
            prompt = self._decode(request.prompt_token_ids or (), False) or None
            fields: dict[str, Any] = {"num_prompt_tokens": request.num_prompt_tokens, "prompt": prompt}
            self._observer.note(events.Arrived, sequence=request.request_id, **fields)

    def track(self, request: Request) -> None:
        """Remember a sequence until its end is noted."""
        if self.is_recording:
            self._num_prompt_tokens.setdefault(request.request_id, request.num_prompt_tokens)

    def sampled(self, sequence: str, num_accepted: int, num_taken_back: int) -> None:
        """Note that a step has accepted drafts of a sequence, which a handler may have aborted meanwhile."""
        if sequence in self._num_prompt_tokens:
            self._drafts[sequence].update(num_accepted=num_accepted, num_taken_back=num_taken_back)

    def ended(self, request: Request) -> None:
        """Note the end of a sequence."""
        if self.is_recording:
            output = request.all_token_ids[self._num_prompt_tokens.pop(request.request_id) :]
            text = self._decode(output, params_of(request).skip_special_tokens)
            drafts = self._drafts.pop(request.request_id, Counter[str]())
            self._ended(request.request_id, request.status, len(output), text, **drafts)

    def step(
        self,
        start: float,
        scheduled: Mapping[str, int],
        drafts: Mapping[str, Sequence[int]],
        requests: Mapping[str, Request],
        held: Mapping[str, Sequence[int]],
        num_blocked: int,
        num_waiting: int,
    ) -> None:
        """Note that a step started at ``start`` or, with nothing scheduled, that the one before it has ended.

        Args:
            scheduled: The number of tokens of each request that is scheduled.
            drafts: Those among them that are drafted.
            held: The ids of the blocks that each holder has.
        """
        prefill, decode = [], []
        for name, num_tokens in scheduled.items():
            # Upstream counts what is scheduled as computed already.
            start_of_chunk = requests[name].num_computed_tokens - num_tokens
            num_drafted = len(drafts.get(name, ()))
            num_known = num_tokens - num_drafted
            if num_drafted:
                self._drafts[name].update(num_drafted=num_drafted)
            if num_known > 1 or start_of_chunk < requests[name].num_prompt_tokens:
                prefill.append((name, num_known))
            else:
                decode.append(name)
        self._step(
            start,
            prefill,
            decode,
            num_used_blocks=self._pool.num_gpu_blocks - 1 - self._pool.get_num_free_blocks(),
            num_unshared_blocks=sum(map(len, held.values())),
            num_blocked=num_blocked,
            num_waiting=num_waiting,
        )
