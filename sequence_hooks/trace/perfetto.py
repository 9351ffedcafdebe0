# SPDX-License-Identifier: Apache-2.0
"""Draws a trace in the Trace Event Format, for ui.perfetto.dev and chrome://tracing.

Each request is a process, in order of arrival, and each of its sequences a thread, in spawn order below its parent. A
request with children also counts those of its sequences that compute. Process 0 has the engine's counters. Times are
microseconds.
"""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any

from sequence_hooks.trace.lanes import Arrow, Bar, Lane, Picture, StreamSamples

TraceEvent = dict[str, Any]
_MICROSECONDS = 1e6
_INSIDE = 0.5
"""Microseconds before its bar's end at which an arrow is bound (at most half the bar): after the end it is unbound."""


def to_json(picture: Picture) -> str:
    """The trace, as one JSON object."""
    metadata = {"model": picture.model, "hooks": picture.run.hooks, "recording": picture.name}
    return json.dumps({"displayTimeUnit": "ms", "otherData": metadata, "traceEvents": list(events_of(picture))})


def events_of(picture: Picture) -> Iterator[TraceEvent]:
    """All trace events, not ordered by time."""
    places = _places(picture)
    yield from _process("engine", pid=0, tid=0)
    for index, stream in enumerate(picture.streams):
        yield from _counters(stream, index)
    for pid, lanes in groupby(picture.lanes, key=lambda lane: places[lane]["pid"]):
        yield from _of_request(list(lanes), pid, places)
    for index, arrow in enumerate(picture.arrows):
        yield from _flow(arrow, index, places)


def _places(picture: Picture) -> dict[Lane, dict[str, Any]]:
    """Process and thread of each lane."""
    places: dict[Lane, dict[str, Any]] = {}
    pid = 0
    for tid, lane in enumerate(picture.lanes, 1):
        pid = tid if lane.parent is None else pid
        places[lane] = {"pid": pid, "tid": tid}
    return places


def _name(kind: str, name: str, **place: Any) -> TraceEvent:
    return {"ph": "M", "name": kind, "args": {"name": name}, **place}


def _process(name: str, **place: Any) -> Iterator[TraceEvent]:
    yield _name("process_name", name, **place)
    yield {"ph": "M", "name": "process_sort_index", "args": {"sort_index": place["pid"]}, **place}


def _of_request(lanes: list[Lane], pid: int, places: dict[Lane, dict[str, Any]]) -> Iterator[TraceEvent]:
    yield from _process(f"request {lanes[0].request_id}", **places[lanes[0]])
    for lane in lanes:
        yield from _of_lane(lane, places[lane])
    if len(lanes) == 1:
        return
    for time, count in _computing(bar for lane in lanes for bar in lane.bars):
        place = {"ts": time * _MICROSECONDS, "pid": pid, "tid": pid}
        yield {"ph": "C", "name": "sequences", "args": {"running": count}, **place}


def _computing(bars: Iterable[Bar]) -> Iterator[tuple[float, int]]:
    """How many sequences compute from each time on at which that changes."""
    changes: Counter[float] = Counter()
    for bar in bars:
        if bar.state in ("prefill", "decode"):
            changes[bar.start] += 1
            changes[bar.end] -= 1
    count = 0
    for time, change in sorted(changes.items()):
        if change:
            count += change
            yield time, count


def _of_lane(lane: Lane, place: dict[str, Any]) -> Iterator[TraceEvent]:
    yield _name("thread_name", lane.request_id, **place)
    yield {"ph": "M", "name": "thread_sort_index", "args": {"sort_index": place["tid"]}, **place}
    for bar in lane.bars:
        args = {"tokens": bar.num_tokens} if bar.num_tokens else {}
        times = {"ts": bar.start * _MICROSECONDS, "dur": (bar.end - bar.start) * _MICROSECONDS}
        yield {"ph": "X", "name": bar.state, "cat": bar.state, **times, "args": args, **place}
    for note in lane.notes:
        said = {"text": lane.text} if note.time == lane.end else {}
        yield {"ph": "i", "s": "t", "name": note.text, "ts": note.time * _MICROSECONDS, "args": said, **place}


def _flow(arrow: Arrow, index: int, places: dict[Lane, dict[str, Any]]) -> Iterator[TraceEvent]:
    """The two ends of a flow; nothing if one of its lanes has no bar to bind it to."""
    source, target = _bar_at(arrow.source, arrow.start), _bar_at(arrow.target, arrow.end)
    if source is None or target is None:
        return
    flow = {"name": arrow.kind, "cat": "fork and join", "id": index}
    yield {"ph": "s", **flow, "ts": _within(source, arrow.start), **places[arrow.source]}
    yield {"ph": "f", "bp": "e", **flow, "ts": _within(target, arrow.end), **places[arrow.target]}


def _bar_at(lane: Lane, time: float) -> Bar | None:
    """The first bar that contains ``time`` or ends at it; None if there is none."""
    for index in range(bisect_left(lane.bars, time, key=attrgetter("end")), len(lane.bars)):
        bar = lane.bars[index]
        if bar.end > bar.start:
            return bar if bar.start <= time else None
    return None


def _within(bar: Bar, time: float) -> float:
    length = (bar.end - bar.start) * _MICROSECONDS
    return min(time * _MICROSECONDS, bar.end * _MICROSECONDS - min(_INSIDE, length / 2))


def _counters(stream: StreamSamples, index: int) -> Iterator[TraceEvent]:
    name = f" of scheduler {index}" if index else ""
    for sample in stream.samples:
        place = {"ts": sample.time * _MICROSECONDS, "pid": 0, "tid": 0}
        blocks = {"used": sample.num_used, "free": stream.num_blocks - sample.num_used}
        sequences = {"running": sample.num_running, "blocked": sample.num_blocked, "waiting": sample.num_waiting}
        yield {"ph": "C", "name": f"KV blocks{name}", "args": blocks, **place}
        yield {"ph": "C", "name": f"KV blocks unshared{name}", "args": {"used": sample.num_unshared}, **place}
        yield {"ph": "C", "name": f"sequences{name}", "args": sequences, **place}
