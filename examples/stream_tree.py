# SPDX-License-Identifier: Apache-2.0
"""Streams a request and its children from a server of the tiny model: `python examples/stream_tree.py [ADDRESS]`."""

import os
import sys
from functools import partial

from openai import OpenAI
from rich.console import Console

from sequence_hooks.client import TextDelta, Tree, events
from sequence_hooks.results import ChildDelta

PROMPT = "fork 1 stone 2 apple 3 river\n"


def main(address: str = "http://localhost:8000") -> None:
    """Print each piece as it arrives, with the sequence that it belongs to; then the tree."""
    client = OpenAI(base_url=f"{address}/v1", api_key=os.environ.get("OPENAI_API_KEY", "none"))
    say = partial(Console().print, markup=False, highlight=False, soft_wrap=True)
    stream = client.completions.create(
        model=client.models.list().data[0].id,
        prompt=PROMPT,
        max_tokens=40,
        temperature=0,
        stream=True,
        extra_body={"skip_special_tokens": False, "stream_children": True},
    )
    for event in events(stream):
        match event:
            case TextDelta():
                say(f"parent  {event.text!r}")
            case ChildDelta():
                say(f"child {event.request_id.rsplit('_', 1)[1]}  {event.text!r}")
            case Tree():
                say(f"children: {[child.text for child in event.children]}")
                say(f"segments: {[(each.start, each.end, each.origin) for each in event.segments]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
