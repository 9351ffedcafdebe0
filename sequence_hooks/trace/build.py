# SPDX-License-Identifier: Apache-2.0
"""Builds the lanes, bars, arrows and samples of a trace from the events of a recorded run."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import singledispatchmethod

from sequence_hooks.trace import events
from sequence_hooks.trace.events import AnyEvent
from sequence_hooks.trace.lanes import Arrow, Lane, Note, Picture, Sample, State, StreamSamples
from sequence_hooks.trace.reader import Recording, TraceError
from sequence_hooks.tree.events import Assembled, Blocked, Cancelled, Joined, Spawned


def picture_of(recorded: Recording) -> Picture:
    """The trace of ``recorded``.

    Raises:
        TraceError: an event is about a sequence or a scheduler that the file has not introduced.
    """
    start = min((event.time for event in recorded.events), default=0.0)
    builder = _Builder(start)
    for number, event in enumerate(recorded.events, 2):
        try:
            builder.take(event)
        except _UnknownName as error:
            raise TraceError(
                f"{recorded.path}, line {number}: {error} does not begin in the file; "
                "another engine has overwritten it: record each engine to its own file"
            ) from None
    builder.end()
    lanes = tuple(lane for root in builder.roots for lane in _tree(root))
    streams = tuple(stream.samples for stream in builder.streams.values())
    return Picture(recorded.path.name, recorded.run, lanes, tuple(builder.arrows), streams, builder.now)


class _UnknownName(LookupError):
    """An event is about something that the file has not introduced."""


@dataclass
class _OpenStream:
    samples: StreamSamples
    step_start: float = 0.0
    scheduled: dict[str, tuple[State, int]] = field(default_factory=dict)
    """What the running step computes for each sequence, and how many tokens; its duration is known at its end."""


class _Builder:
    """Takes events in the order of the file."""

    def __init__(self, start: float) -> None:
        self.streams: dict[str, _OpenStream] = {}
        self.roots: list[Lane] = []
        self.arrows: list[Arrow] = []
        self.now = 0.0
        self._start = start
        self._lanes: dict[tuple[str, str], Lane] = {}

    def take(self, event: AnyEvent) -> None:
        self.now = max(self.now, self._time(event))
        self._on(event.event if isinstance(event, events.TreeChanged) else event, event)

    def end(self) -> None:
        """End the trace: whatever is still open lasts until the last event."""
        for name, stream in self.streams.items():
            for sequence in list(stream.scheduled):
                self._close(name, sequence, self.now)
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

    def _lane(self, event: AnyEvent, sequence: str) -> Lane:
        if (event.stream, sequence) not in self._lanes:
            raise _UnknownName(f"sequence {sequence} of stream {event.stream}")
        return self._lanes[event.stream, sequence]

    def _close(self, stream: str, sequence: str, end: float) -> None:
        """End a sequence's part of the running step."""
        running = self.streams[stream]
        if sequence in running.scheduled:
            state, num_tokens = running.scheduled.pop(sequence)
            self._lanes[stream, sequence].do(state, running.step_start, end, num_tokens)

    def _note(self, event: AnyEvent, sequence: str, text: str) -> Lane:
        self._stream(event)
        lane = self._lane(event, sequence)
        lane.notes.append(Note(self._time(event), text))
        return lane

    @singledispatchmethod
    def _on(self, event: object, line: AnyEvent) -> None:
        """Take an `events.SchedulerStarted`; each other kind has its own function.

        Args:
            event: What the ``line`` of the file tells: itself, or an event of a tree.
        """
        assert isinstance(event, events.SchedulerStarted)
        self.streams[event.stream] = _OpenStream(StreamSamples(event.block_size, event.num_blocks))

    @_on.register
    def _(self, event: events.Arrived, line: AnyEvent) -> None:
        lane = Lane(event.sequence, self._time(event), event.num_prompt_tokens, event.prompt)
        self._lanes[event.stream, event.sequence] = lane
        self.roots.append(lane)

    @_on.register
    def _(self, event: Spawned, line: AnyEvent) -> None:
        spec = event.spec
        parent, time = self._lane(line, spec.parent_id), self._time(line)
        lane = Lane(spec.request_id, time, spec.num_prompt_tokens, parent=parent, spawn_position=spec.position)
        parent.children.append(lane)
        self._lanes[line.stream, spec.request_id] = lane
        self.arrows.append(Arrow("spawn", parent, time, lane, time))
        if spec.label:
            lane.notes.append(Note(time, spec.label))
        if spec.is_detached:
            lane.notes.append(Note(time, "detached: only the end of its request waits for it"))
        if spec.context != "parent":
            seen = "nothing of its parent" if spec.context == "none" else "its parent up to the trigger"
            lane.notes.append(Note(time, f"its context has {seen}, then its prefix"))

    @_on.register
    def _(self, event: events.Step, line: AnyEvent) -> None:
        stream, time = self._stream(event), self._time(event)
        for sequence in list(stream.scheduled):
            self._close(event.stream, sequence, time)
        stream.step_start = time
        stream.scheduled = {sequence: ("prefill", num_tokens) for sequence, num_tokens in event.prefill}
        stream.scheduled |= dict.fromkeys(event.decode, ("decode", 1))
        for sequence in stream.scheduled:
            self._lane(event, sequence)
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
    def _(self, event: Blocked, line: AnyEvent) -> None:
        lane = self._note(line, event.request_id, _waits(event))
        self._close(line.stream, event.request_id, self._time(line))
        lane.blocked_since = self._time(line)

    @_on.register
    def _(self, event: Cancelled, line: AnyEvent) -> None:
        lane = self._note(line, event.request_id, "cancelled: its parent goes on without it")
        lane.is_cancelled = True
        lane.reason = "cancelled" if lane.reason == "aborted" else lane.reason

    @_on.register
    def _(self, event: Joined, line: AnyEvent) -> None:
        time = self._time(line)
        text = f"joined: {event.num_merged} tokens merged, {event.num_injected} of them with their KV, "
        text += f"{event.num_prefill} to prefill" + (f", {event.num_cut} cut off" if event.num_cut else "")
        text += f", in the place of {event.num_replaced}" if event.num_replaced else ""
        lane = self._note(line, event.request_id, text)
        lane.unblock(time)
        # A sequence that ended before its children keeps the time of its own end.
        end = time if lane.end is None else lane.end
        for child in (self._lane(line, sequence) for sequence in event.children):
            self.arrows.append(Arrow("merge", child, end if child.end is None else child.end, lane, end))

    @_on.register
    def _(self, event: Assembled, line: AnyEvent) -> None:
        text = f"its output has the results of {len(event.children)} detached children"
        lane, time = self._note(line, event.request_id, text), self._time(line)
        for child in (self._lane(line, sequence) for sequence in event.children):
            self.arrows.append(Arrow("merge", child, time if child.end is None else child.end, lane, time))

    @_on.register
    def _(self, event: events.Evicted, line: AnyEvent) -> None:
        self._note(event, event.sequence, f"gave up KV: {_means(event)}")

    @_on.register
    def _(self, event: events.Preempted, line: AnyEvent) -> None:
        self._note(event, event.sequence, f"preempted: {_means(event)}")
        self._close(event.stream, event.sequence, self._time(event))

    @_on.register
    def _(self, event: events.SwappedIn, line: AnyEvent) -> None:
        self._note(event, event.sequence, "KV copied back from swap space")

    @_on.register
    def _(self, event: events.Finished, line: AnyEvent) -> None:
        time, lane = self._time(event), self._lane(event, event.sequence)
        reason = "cancelled" if lane.is_cancelled and event.reason == "aborted" else event.reason
        self._note(event, event.sequence, f"finished: {reason}")
        self._close(event.stream, event.sequence, time)
        lane.unblock(time)
        lane.wait_until(time)
        lane.end, lane.reason, lane.text = time, reason, event.text
        lane.num_output_tokens = event.num_output_tokens


def _waits(event: Blocked) -> str:
    if event.waits_for == "caller":
        return "BLOCKED until it is resumed"
    if event.join_when == 0:
        return "BLOCKED at its end until its unjoined children are cancelled"
    numbers = "" if event.numbers is None else " " + ", ".join(map(str, event.numbers))
    return f"BLOCKED until its children{numbers} finish" + (f", {event.join_when} of them" if event.join_when else "")


def _means(event: events.Evicted | events.Preempted) -> str:
    return "copied to swap space" if event.means == "swap" else f"{event.num_recomputed} tokens to recompute"


def _tree(root: Lane) -> Iterator[Lane]:
    """A lane, followed by those of its descendants. Iterative, because trees may have any depth."""
    left = [root]
    while left:
        lane = left.pop()
        yield lane
        left += reversed(lane.children)
