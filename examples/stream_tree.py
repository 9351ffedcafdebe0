# SPDX-License-Identifier: Apache-2.0
"""Streams a request and its children from a server of the tiny model: `python examples/stream_tree.py [ADDRESS]`."""

import os
import sys
from functools import partial

from openai import OpenAI
from rich.console import Console

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
    for chunk in stream:
        if chunk.choices:
            name, text = "parent", chunk.choices[0].text
        else:
            child = (chunk.model_extra or {})["child"]
            name, text = "child " + child["request_id"].rsplit("_", 1)[1], child["text"]
        say(f"{name}  {text!r}")
    tree = chunk.choices[0].model_extra or {}
    say(f"children: {[child['text'] for child in tree['children']]}")
    say(f"segments: {[(segment['start'], segment['end'], segment['origin']) for segment in tree['segments']]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
