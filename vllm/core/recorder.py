# SPDX-License-Identifier: Apache-2.0
"""What a scheduler tells its observer about requests, steps and ends; the trees report their own events."""

from collections.abc import Iterable

from sequence_hooks.kv.eviction import EvictionMeans
from sequence_hooks.trace import events
from sequence_hooks.trace.observer import Observer
from sequence_hooks.trace.steps import StepCounts, StepRecorder
from vllm.core.hooked_sequence import branch_of_seq
from vllm.sequence import Sequence, SequenceGroup, SequenceGroupMetadata, SequenceStatus


class SchedulerRecorder:
    """Turns what upstream's scheduler does into events, each noted once."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._live: dict[int, SequenceGroup] = {}
        """The groups whose end is not noted yet, by sequence id."""

        self._steps = StepRecorder(observer)

    @property
    def is_recording(self) -> bool:
        """Whether counts are worth computing."""
        return self._observer.is_recording

    def now(self) -> float:
        """The time that an event gets now, in seconds."""
        return self._observer.now()

    def arrived(self, group: SequenceGroup) -> None:
        """Note that a request, or one of its samples, is queued."""
        self.track(group)
        seq = group.first_seq
        self._observer.note(
            events.Arrived,
            sequence=group.request_id,
            num_prompt_tokens=seq.get_prompt_len(),
            prompt=seq.prompt,
        )

    def track(self, group: SequenceGroup) -> None:
        """Remember a sequence until its end is noted."""
        if self._observer.is_recording:
            self._live[group.first_seq.seq_id] = group

    def preempted(self, group: SequenceGroup, means: EvictionMeans, num_recomputed: int) -> None:
        """Note that a running group was preempted, and gave up KV."""
        self._observer.note(events.Preempted, sequence=group.request_id, means=means, num_recomputed=num_recomputed)

    def swapped_in(self, group: SequenceGroup) -> None:
        """Note that the KV of a group is copied back in this step."""
        self._observer.note(events.SwappedIn, sequence=group.request_id)

    def ended(self, seq: Sequence) -> None:
        """Note the end of a sequence, once, unless it waits for its children. Upstream frees it in several ways."""
        if seq.seq_id not in self._live:
            return
        branch = branch_of_seq(seq)
        if branch is not None and branch.waits_at_end and seq.status != SequenceStatus.FINISHED_ABORTED:
            return
        group = self._live.pop(seq.seq_id)
        self._observer.note(
            events.Finished,
            sequence=group.request_id,
            reason=seq.status.name.removeprefix("FINISHED_").lower(),
            num_output_tokens=seq.get_output_len(),
            text=seq.output_text,
        )

    def step(
        self, start: float, scheduled: Iterable[tuple[SequenceGroupMetadata, SequenceGroup]], counts: StepCounts
    ) -> None:
        """Note that a step started at ``start`` or, with nothing scheduled, that the one before it has ended."""
        entries = [(metadata, group.request_id) for metadata, group in scheduled]
        prefill = [(name, metadata.token_chunk_size) for metadata, name in entries if metadata.is_prompt]
        self._steps.note(start, prefill, [name for metadata, name in entries if not metadata.is_prompt], counts)
