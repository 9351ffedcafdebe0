# SPDX-License-Identifier: Apache-2.0
"""Draws a trace as one HTML page that needs nothing but a browser."""

import html
import json
import re
import time
from importlib.resources import files
from itertools import pairwise
from typing import Any, get_args

from sequence_hooks.trace.lanes import Arrow, Lane, Picture, State, StreamSamples

SCRIPTS = (
    *("text", "model", "frame", "time", "tally", "rows"),
    *("draw", "stack", "blocks", "minimap", "labels"),
    *("search", "tip", "pointer", "keys", "start"),
)
"""The scripts of the page, in the order in which they run; they share one scope."""

_STYLES = ("palette", "page")
_STATES = get_args(State)
_MICROSECONDS = 1e6
_MAX_TEXT = 2000
"""The maximum number of characters of each text on the page."""

_MAX_TEXTS = 8_000_000
"""The maximum number of characters of all texts together, which are cut alike."""


def to_html(picture: Picture) -> str:
    """The HTML page of a trace."""
    folder = files(__package__)
    scripts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    data = json.dumps(_data(picture), separators=(",", ":"))
    parts = {
        "title": html.escape(picture.name),
        "summary": html.escape(_summary(picture)),
        "style": "".join((folder / f"{name}.css").read_text(encoding="utf-8") for name in _STYLES),
        "scripts": "\n".join(f"<script>\n{script}</script>" for script in scripts),
        # In a script element nothing is unescaped, and "</script>" or "<!--" would end or change it.
        "data": data.replace("<", "\\u003c"),
    }
    template = (folder / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _summary(picture: Picture) -> str:
    num_requests = sum(lane.parent is None for lane in picture.lanes)
    num_children = len(picture.lanes) - num_requests
    num_steps = sum(sample.num_running > 0 for stream in picture.streams for sample in stream.samples)
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(picture.run.started))
    counts = [
        _counted(num_requests, "request", "requests"),
        _counted(num_children, "child", "children"),
        _counted(num_steps, "step", "steps"),
    ]
    length = f"{picture.end:,.0f}" if picture.end >= 100 else f"{picture.end:.3g}"
    return f"{picture.model} · {started} UTC · {', '.join(counts)} in {length} s"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _data(picture: Picture) -> dict[str, Any]:
    """What the scripts draw. Times and durations are whole microseconds, lanes are named by their index."""
    indices = {lane: index for index, lane in enumerate(picture.lanes)}
    max_text = min(_MAX_TEXT, _MAX_TEXTS // max(1, 2 * len(picture.lanes)))
    return {
        "end": _microseconds(picture.end),
        "states": _STATES,
        "lanes": [_lane(lane, indices, max_text) for lane in picture.lanes],
        "arrows": [_arrow(arrow, indices) for arrow in picture.arrows],
        "streams": [_stream(stream) for stream in picture.streams],
    }


def _lane(lane: Lane, indices: dict[Lane, int], max_text: int) -> dict[str, Any]:
    return {
        "name": lane.request_id,
        "parent": None if lane.parent is None else indices[lane.parent],
        "start": _microseconds(lane.start),
        "end": None if lane.end is None else _microseconds(lane.end),
        "position": lane.spawn_position,
        "prompt_tokens": lane.num_prompt_tokens,
        "output_tokens": lane.num_output_tokens,
        "reason": lane.reason,
        "prompt": _shortened(lane.prompt or "", max_text),
        "text": _shortened(lane.text, max_text),
        "bars": _bars(lane),
        "notes": [[_microseconds(note.time), note.text] for note in lane.notes],
    }


def _bars(lane: Lane) -> list[int]:
    """State, duration and tokens of each bar in one list: each starts where the one before it ends."""
    borders = [_microseconds(time) for time in (lane.start, *(bar.end for bar in lane.bars))]
    durations = [end - start for start, end in pairwise(borders)]
    bars = zip(lane.bars, durations, strict=True)
    return [value for bar, duration in bars for value in (_STATES.index(bar.state), duration, bar.num_tokens)]


def _arrow(arrow: Arrow, indices: dict[Lane, int]) -> list[Any]:
    start, end = _microseconds(arrow.start), _microseconds(arrow.end)
    return [arrow.kind, indices[arrow.source], start, indices[arrow.target], end]


def _stream(stream: StreamSamples) -> dict[str, Any]:
    samples = [
        [_microseconds(s.time), s.num_used, s.num_unshared, s.num_running, s.num_blocked, s.num_waiting]
        for s in stream.samples
    ]
    return {"block_size": stream.block_size, "num_blocks": stream.num_blocks, "samples": samples}


def _microseconds(seconds: float) -> int:
    return round(seconds * _MICROSECONDS)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + " …"
