# SPDX-License-Identifier: Apache-2.0
"""Draws a trace as one HTML page that needs nothing but a browser."""

import html
import json
import re
import time
from importlib.resources import files
from typing import Any

from sequence_hooks.trace.lanes import Arrow, Lane, Picture, StreamSamples

_MAX_TEXT = 2000
"""The maximum number of characters of each text on the page."""


def to_html(picture: Picture) -> str:
    """The HTML page of a trace."""
    folder = files(__package__)
    data = json.dumps(_data(picture), separators=(",", ":"))
    parts = {
        "title": html.escape(picture.name),
        "summary": html.escape(_summary(picture)),
        "style": (folder / "page.css").read_text(),
        "draw": (folder / "draw.js").read_text(),
        "pointer": (folder / "pointer.js").read_text(),
        # In a script element nothing is unescaped, and "</script>" or "<!--" would end or change it.
        "data": data.replace("<", "\\u003c"),
    }
    template = (folder / "page.html").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _summary(picture: Picture) -> str:
    num_requests = sum(lane.parent is None for lane in picture.lanes)
    num_steps = sum(sample.num_running > 0 for stream in picture.streams for sample in stream.samples)
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(picture.run.started))
    counts = f"{num_requests} requests, {len(picture.lanes) - num_requests} children, {num_steps} steps"
    return f"{picture.model} · {started} UTC · {counts} in {picture.end:.3g} s"


def _data(picture: Picture) -> dict[str, Any]:
    rows = {lane: row for row, lane in enumerate(picture.lanes)}
    return {
        "end": picture.end,
        "lanes": [_lane(lane) for lane in picture.lanes],
        "arrows": [_arrow(arrow, rows) for arrow in picture.arrows],
        "streams": [_stream(stream) for stream in picture.streams],
    }


def _lane(lane: Lane) -> dict[str, Any]:
    return {
        "name": lane.request_id,
        "parent": None if lane.parent is None else lane.parent.request_id,
        "depth": lane.depth,
        "start": lane.start,
        "end": lane.end,
        "position": lane.spawn_position,
        "prompt_tokens": lane.num_prompt_tokens,
        "output_tokens": lane.num_output_tokens,
        "reason": lane.reason,
        "prompt": _shortened(lane.prompt or ""),
        "text": _shortened(lane.text),
        "bars": [[bar.state, bar.start, bar.end, bar.num_tokens] for bar in lane.bars],
        "notes": [[note.time, note.text] for note in lane.notes],
    }


def _arrow(arrow: Arrow, rows: dict[Lane, int]) -> list[Any]:
    return [arrow.kind, rows[arrow.source], arrow.start, rows[arrow.target], arrow.end]


def _stream(stream: StreamSamples) -> dict[str, Any]:
    samples = [
        [s.time, s.num_used, s.num_unshared, s.num_running, s.num_blocked, s.num_waiting] for s in stream.samples
    ]
    return {"block_size": stream.block_size, "num_blocks": stream.num_blocks, "samples": samples}


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " …"
