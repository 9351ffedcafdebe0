# SPDX-License-Identifier: Apache-2.0
"""From the events of a recorded run to its lanes, bars, arrows and samples."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import singledispatchmethod

from vllm.hooks import recording
from vllm.hooks.recording import AnyEvent
from vllm.hooks.trace.lanes import Arrow, Lane, Note, Picture, Sample, State, StreamSamples
from vllm.hooks.trace.reader import Recording, TraceError


def picture_of(recorded: Recording) -> Picture:
    """What ``recorded`` looks like.

    Raises:
        TraceError: an event is about a sequence or a scheduler that the file doesn't know.
    """
    start = min((event.time for event in recorded.events), default=0.0)
    builder = _Builder(start)
    for number, event in enumerate(recorded.events, 2):
        try:
            builder.take(event)
        except _UnknownName as error:
            raise TraceError(
                f"{recorded.path}, line {number}: {error} has no beginning in the file; "
                "another engine began it anew: record each to a file of its own"
            ) from None
    builder.end()
    lanes = tuple(lane for root in builder.roots for lane in _tree(root))
    streams = tuple(stream.samples for stream in builder.streams.values())
    return Picture(recorded.path.name, recorded.run, lanes, tuple(builder.arrows), streams, builder.now)


class _UnknownName(LookupError):
    """An event is about something that the file hasn't told of."""


@dataclass
class _OpenStream:
    samples: StreamSamples
    step_start: float = 0.0
    scheduled: dict[int, tuple[State, int]] = field(default_factory=dict)
    """What the running step computes, by sequence: how long that takes is known at its end."""


class _Builder:
    """Takes events in the order of the file."""

    def __init__(self, start: float) -> None:
        self.streams: dict[str, _OpenStream] = {}
        self.roots: list[Lane] = []
        self.arrows: list[Arrow] = []
        self.now = 0.0
        self._start = start
        self._lanes: dict[tuple[str, int], Lane] = {}

    def take(self, event: AnyEvent) -> None:
        self.now = max(self.now, self._time(event))
        self._on(event)

    def end(self) -> None:
        """Nothing follows; what is still open lasts to the last event."""
        for name, stream in self.streams.items():
            for seq in list(stream.scheduled):
                self._close(name, seq, self.now)
        for lane in self._lanes.values():
            if lane.end is None:
                lane.unblock(self.now)
                lane.wait_until(self.now)

    def _time(self, event: AnyEvent) -> float:
        return event.time - self._start

    def _stream(self, event: AnyEvent) -> _OpenStream:
        if event.stream not in self.streams:
            raise _UnknownName(f"stream {event.stream}")
        return self.streams[event.stream]

    def _lane(self, event: AnyEvent, seq: int) -> Lane:
        if (event.stream, seq) not in self._lanes:
            raise _UnknownName(f"sequence {seq} of stream {event.stream}")
        return self._lanes[event.stream, seq]

    def _close(self, stream: str, seq: int, end: float) -> None:
        """A sequence's part of the running step ends."""
        running = self.streams[stream]
        if seq in running.scheduled:
            state, num_tokens = running.scheduled.pop(seq)
            self._lanes[stream, seq].do(state, running.step_start, end, num_tokens)

    def _note(self, event: AnyEvent, seq: int, text: str) -> Lane:
        self._stream(event)
        lane = self._lane(event, seq)
        lane.notes.append(Note(self._time(event), text))
        return lane

    @singledispatchmethod
    def _on(self, event: AnyEvent) -> None:
        """A `recording.Stream`; the others have functions of their own."""
        assert isinstance(event, recording.Stream)
        self.streams[event.stream] = _OpenStream(StreamSamples(event.block_size, event.num_blocks))

    @_on.register
    def _(self, event: recording.Arrived) -> None:
        lane = Lane(event.request_id, self._time(event), event.num_prompt_tokens, event.prompt)
        self._lanes[event.stream, event.seq] = lane
        self.roots.append(lane)

    @_on.register
    def _(self, event: recording.Spawned) -> None:
        parent, time = self._lane(event, event.parent), self._time(event)
        lane = Lane(event.request_id, time, event.num_prompt_tokens, parent=parent, spawn_position=event.position)
        parent.children.append(lane)
        self._lanes[event.stream, event.seq] = lane
        self.arrows.append(Arrow("spawn", parent, time, lane, time))

    @_on.register
    def _(self, event: recording.Step) -> None:
        stream, time = self._stream(event), self._time(event)
        for seq in list(stream.scheduled):
            self._close(event.stream, seq, time)
        stream.step_start = time
        stream.scheduled = {seq: ("prefill", num_tokens) for seq, num_tokens in event.prefill}
        stream.scheduled |= dict.fromkeys(event.decode, ("decode", 1))
        for seq in stream.scheduled:
            self._lane(event, seq)
        stream.samples.samples.append(
            Sample(
                time,
                event.num_used_blocks,
                event.num_unshared_blocks,
                len(stream.scheduled),
                event.num_blocked,
                event.num_waiting,
            )
        )

    @_on.register
    def _(self, event: recording.Blocked) -> None:
        text = "BLOCKED until its children finish" if event.until == "children" else "BLOCKED until it is resumed"
        lane = self._note(event, event.seq, text)
        self._close(event.stream, event.seq, self._time(event))
        lane.blocked_since = self._time(event)

    @_on.register
    def _(self, event: recording.Joined) -> None:
        time = self._time(event)
        text = f"joined: {event.num_merged} tokens merged, {event.num_injected} of them with their KV, "
        text += f"{event.num_prefill} to prefill" + (f", {event.num_cut} cut off" if event.num_cut else "")
        lane = self._note(event, event.seq, text)
        lane.unblock(time)
        # A sequence that ends with its join has ended before.
        end = time if lane.end is None else lane.end
        for child in (self._lane(event, seq) for seq in event.children):
            self.arrows.append(Arrow("merge", child, end if child.end is None else child.end, lane, end))

    @_on.register
    def _(self, event: recording.GaveUp) -> None:
        self._note(event, event.seq, f"gave up KV: {_means(event)}")

    @_on.register
    def _(self, event: recording.Preempted) -> None:
        self._note(event, event.seq, f"preempted: {_means(event)}")
        self._close(event.stream, event.seq, self._time(event))

    @_on.register
    def _(self, event: recording.SwappedIn) -> None:
        self._note(event, event.seq, "KV copied back from swap space")

    @_on.register
    def _(self, event: recording.Finished) -> None:
        time = self._time(event)
        lane = self._note(event, event.seq, f"finished: {event.reason}")
        self._close(event.stream, event.seq, time)
        lane.unblock(time)
        lane.wait_until(time)
        lane.end, lane.reason, lane.text = time, event.reason, event.text
        lane.num_output_tokens = event.num_output_tokens


def _means(event: recording.GaveUp | recording.Preempted) -> str:
    return "copied to swap space" if event.means == "swap" else f"{event.num_recomputed} tokens to compute again"


def _tree(root: Lane) -> Iterator[Lane]:
    """A lane, and below it those of its children; a loop, since trees have any depth."""
    left = [root]
    while left:
        lane = left.pop()
        yield lane
        left += reversed(lane.children)
