# SPDX-License-Identifier: Apache-2.0
"""What a scheduler tells its observer about requests and steps; trees and `Pressure` report their own events."""

from collections.abc import Callable, Mapping, Sequence

from sequence_hooks.trace import events
from sequence_hooks.trace.observer import SILENT, Observer
from sequence_hooks.trace.steps import Counts, StepNotes
from sequence_hooks.v1.core.sequence import params_of
from vllm.v1.request import Request

Decode = Callable[[Sequence[int], bool], str]
"""The text of tokens, with or without special ones; empty if the engine has no tokenizer."""


class RunNotes:
    """Turns what upstream's scheduler does into events, each noted once."""

    def __init__(self, observer: Observer = SILENT, decode: Decode | None = None) -> None:
        self._observer = observer
        self._decode = decode
        self._steps = StepNotes(observer)
        self._num_prompt_tokens: dict[str, int] = {}
        """Of each sequence whose end is not noted yet. To upstream, a join turns all that it has into its prompt."""

    @property
    def is_recording(self) -> bool:
        """Whether counts are worth computing."""
        return self._observer.is_recording

    def now(self) -> float:
        """The time that an event gets now, in seconds."""
        return self._observer.now()

    def arrived(self, request: Request) -> None:
        """Note that a request, or one of its samples, is queued."""
        if self.is_recording:
            self._observer.note(
                events.Arrived,
                sequence=request.request_id,
                num_prompt_tokens=request.num_prompt_tokens,
                prompt=self._text(request.prompt_token_ids or (), False) or None,
            )

    def lives(self, request: Request) -> None:
        """Remember a sequence until its end is noted."""
        if self.is_recording:
            self._num_prompt_tokens.setdefault(request.request_id, request.num_prompt_tokens)

    def preempted(self, request: Request) -> None:
        """Note that a running request is about to be preempted, and to give up its KV."""
        num_recomputed = request.num_computed_tokens
        self._observer.note(
            events.Preempted, sequence=request.request_id, means="discard", num_recomputed=num_recomputed
        )

    def ended(self, request: Request) -> None:
        """Note the end of a sequence."""
        if not self.is_recording:
            return
        output = request.all_token_ids[self._num_prompt_tokens.pop(request.request_id) :]
        self._observer.note(
            events.Finished,
            sequence=request.request_id,
            reason=request.status.name.removeprefix("FINISHED_").lower(),
            num_output_tokens=len(output),
            text=self._text(output, params_of(request).skip_special_tokens),
        )

    def step(self, start: float, scheduled: Mapping[str, int], requests: Mapping[str, Request], counts: Counts) -> None:
        """Note that a step started at ``start`` or, with nothing scheduled, that the one before it has ended.

        Args:
            scheduled: The number of tokens of each request that is scheduled.
        """
        prefill, decode = [], []
        for name, num_tokens in scheduled.items():
            # Upstream counts what is scheduled as computed already.
            start_of_chunk = requests[name].num_computed_tokens - num_tokens
            if num_tokens > 1 or start_of_chunk < requests[name].num_prompt_tokens:
                prefill.append((name, num_tokens))
            else:
                decode.append(name)
        self._steps.note(start, prefill, decode, counts)

    def _text(self, token_ids: Sequence[int], skips_special_tokens: bool) -> str:
        return "" if self._decode is None else self._decode(token_ids, skips_special_tokens)
