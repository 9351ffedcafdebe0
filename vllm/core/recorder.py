# SPDX-License-Identifier: Apache-2.0
"""What a scheduler tells its observer about requests, steps and ends; the trees report their own events."""

from collections.abc import Iterable
from typing import Any

from sequence_hooks.trace import events
from sequence_hooks.trace.observer import Observer, RunRecorder
from vllm.core.hooked_sequence import branch_of_seq
from vllm.sequence import Sequence, SequenceGroup, SequenceGroupMetadata, SequenceStatus


class SchedulerRecorder(RunRecorder):
    """Turns what upstream's scheduler does into events, each noted once."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._live: dict[int, SequenceGroup] = {}
        """The groups whose end is not noted yet, by sequence id."""

    def arrived(self, group: SequenceGroup) -> None:
        """Note that a request, or one of its samples, is queued."""
        self.track(group)
        seq = group.first_seq
        fields: dict[str, Any] = {"num_prompt_tokens": seq.get_prompt_len(), "prompt": seq.prompt}
        self._observer.note(events.Arrived, sequence=group.request_id, **fields)

    def track(self, group: SequenceGroup) -> None:
        """Remember a sequence until its end is noted."""
        if self.is_recording:
            self._live[group.first_seq.seq_id] = group

    def swapped_in(self, group: SequenceGroup) -> None:
        """Note that the KV of a group is copied back in this step."""
        self._observer.note(events.SwappedIn, sequence=group.request_id)

    def ended(self, seq: Sequence) -> None:
        """Note the end of a sequence, once, unless it waits for its children. Upstream frees it in several ways."""
        branch = branch_of_seq(seq)
        waits = branch is not None and branch.must_wait_at_end and seq.status != SequenceStatus.FINISHED_ABORTED
        if seq.seq_id in self._live and not waits:
            group = self._live.pop(seq.seq_id)
            self._ended(group.request_id, seq.status, seq.get_output_len(), seq.output_text)

    def step(
        self, start: float, scheduled: Iterable[tuple[SequenceGroupMetadata, SequenceGroup]], **counts: int
    ) -> None:
        """Note that a step started at ``start`` or, with nothing scheduled, that the one before it has ended."""
        entries = [(metadata, group.request_id) for metadata, group in scheduled]
        prefill = [(name, metadata.token_chunk_size) for metadata, name in entries if metadata.is_prompt]
        self._step(start, prefill, [name for metadata, name in entries if not metadata.is_prompt], **counts)
