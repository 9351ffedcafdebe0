# SPDX-License-Identifier: Apache-2.0
"""Traces of any size without an engine: requests that each take four seconds, and their children."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from sequence_hooks.trace.events import Header
from sequence_hooks.trace.lanes import Arrow, Bar, Lane, Picture, Sample, State, StreamSamples

LASTS = 4.0
"""Seconds of a request; it is BLOCKED from 2 s to 3 s after its start."""

UNTIL: tuple[tuple[State, float], ...] = (
    *(("prefill", 0.5), ("decode", 2.0), ("blocked", 3.0)),
    *(("prefill", 3.25), ("decode", LASTS)),
)
HEADER = Header(1, "a model", {}, 0.0)


def chain(count: int) -> Picture:
    """``count`` lanes of 100 s with a hundred bars each, and an arrow from each to the next."""
    lanes = [Lane(f"r{row}", 0.0, 1, end=100.0, reason="stopped") for row in range(count)]
    for lane in lanes:
        fill(lane, 100.0, 100)
    arrows = [Arrow("spawn", above, 50.0, below, 50.0) for above, below in pairwise(lanes)]
    samples = [Sample(second / 100, second % 64, 64, count, 0, 0) for second in range(10_000)]
    return Picture("run.jsonl", HEADER, tuple(lanes), tuple(arrows), (StreamSamples(16, 64, samples),), 100.0)


def forest(arrivals: Iterable[float], num_children: int = 3, num_bars: int = 2) -> Picture:
    """A request for each arrival, whose children compute beside it for up to 2 s, with ``num_bars`` bars each."""
    arrows: list[Arrow] = []
    lanes: list[Lane] = []
    for number, start in enumerate(arrivals):
        lanes += tree(f"cmpl-{number:04}", start, num_children, num_bars)
    for lane in lanes:
        if lane.parent is not None:
            assert lane.end is not None
            arrows.append(Arrow("spawn", lane.parent, lane.start, lane, lane.start))
            arrows.append(Arrow("merge", lane, lane.end, lane.parent, lane.parent.start + 3))
    end = max((lane.end or 0.0 for lane in lanes), default=0.0)
    samples = [Sample(step / 10, 100 + step % 400, 900, 1, 0, 0) for step in range(int(10 * end))]
    return Picture("run.jsonl", HEADER, tuple(lanes), tuple(arrows), (StreamSamples(16, 131_072, samples),), end)


def tree(name: str, start: float, num_children: int, num_bars: int) -> Iterator[Lane]:
    """A request that is BLOCKED until its children have finished, and the children."""
    root = Lane(name, start, 1234, prompt=f"prompt of {name}", text=f"text of {name}")
    for state, until in UNTIL:
        root.do(state, root.covered, start + until, 1234 if state == "prefill" else 15)
    finish(root, start + LASTS)
    yield root
    for number in range(num_children):
        child = Lane(f"{name}_child_{number}", start + 1 + number / (2 * num_children), 8, parent=root)
        root.children.append(child)
        fill(child, start + 3, num_bars)
        finish(child, start + 3)
        yield child


def fill(lane: Lane, until: float, num_bars: int) -> None:
    """Give a lane bars of equal length, which prefill and decode by turns."""
    length = (until - lane.start) / num_bars
    borders = [lane.start + number * length for number in range(num_bars)]
    lane.bars = [
        Bar("decode" if number % 2 else "prefill", since, to, 1)
        for number, (since, to) in enumerate(pairwise([*borders, until]))
    ]


def finish(lane: Lane, time: float) -> None:
    lane.end, lane.reason, lane.num_output_tokens = time, "stopped", 20
