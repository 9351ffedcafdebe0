# SPDX-License-Identifier: Apache-2.0
"""What a server with sequence hooks tells a client, as typed values: trees of choices, and events of a stream.

It reads what the ``openai`` client returns, and needs neither that package nor an engine::

    stream = client.completions.create(..., stream=True, extra_body={"stream_children": True})
    for event in events(stream):
        match event:
            case TextDelta(text=text):
                print(text, end="")
            case ChildDelta(request_id=child, text=text):
                print(child, text)
            case Waiting(request_id=waiting):
                print("POST /v1/resume_sequence for", waiting)
            case Tree(children=children):
                print(len(children), "children")
"""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from sequence_hooks.results import ChildDelta, ChildOutput, Join, Segment, Transcript, Waiting


@dataclass(frozen=True)
class TextDelta:
    """A piece of a choice's own text: what it has sampled or got from its children."""

    index: int
    """The choice's."""

    text: str
    finish_reason: str | None


@dataclass(frozen=True)
class Tree:
    """The tree of a choice that has ended. Segments and positions count the tokens of the choice."""

    index: int
    """The choice's."""

    request_id: str
    """The id of the choice's own sequence."""

    children: tuple[ChildOutput, ...]
    segments: tuple[Segment, ...]
    joins: tuple[Join, ...]
    sampled: Transcript | None
    """The choice as it was sampled, if results of detached children are in its text; without logprobs."""

    assembled: Transcript | None
    """The choice with these results in their places, which a stream tells only here."""

    limits_met: tuple[str, ...] = ()
    """See `CompletionOutput.limits_met`."""

    recomputed_at: tuple[int, ...] = ()
    """See `CompletionOutput.recomputed_at`."""


Event = TextDelta | ChildDelta | Waiting | Tree


def tree(choice: Any) -> Tree | None:
    """The tree of a choice of a response, or of a stream's last chunk for it; None if no hook has fired.

    Raises:
        msgspec.ValidationError: the server is of another version, whose fields have other types.
    """
    if getattr(choice, "segments", None) is None:
        return None
    return Tree(
        choice.index,
        choice.request_id,
        msgspec.convert(choice.children, tuple[ChildOutput, ...]),
        msgspec.convert(choice.segments, tuple[Segment, ...]),
        msgspec.convert(choice.joins, tuple[Join, ...]),
        _transcript(getattr(choice, "sampled", None)),
        _transcript(getattr(choice, "assembled", None)),
        tuple(getattr(choice, "limits_met", None) or ()),
        tuple(getattr(choice, "recomputed_at", None) or ()),
    )


def events(stream: Iterable[Any]) -> Iterator[Event]:
    """What happens in a stream of completions or chat completions; chunks that say nothing else are left out.

    The pieces of children come only if the request asks for them by ``stream_children``.
    """
    for chunk in stream:
        yield from _events_of(chunk)


async def async_events(stream: AsyncIterable[Any]) -> AsyncIterator[Event]:
    """The same for an asynchronous stream."""
    async for chunk in stream:
        for event in _events_of(chunk):
            yield event


def _events_of(chunk: Any) -> Iterator[Event]:
    child = getattr(chunk, "child", None)
    if child is not None:
        yield msgspec.convert(child, ChildDelta)
    for choice in chunk.choices:
        waiting = getattr(choice, "waiting", None)
        if waiting is not None:
            yield msgspec.convert(waiting, Waiting)
        delta = getattr(choice, "delta", None)
        text = (choice.text if delta is None else delta.content) or ""
        if text or choice.finish_reason is not None:
            yield TextDelta(choice.index, text, choice.finish_reason)
        found = tree(choice)
        if found is not None:
            yield found


def _transcript(given: Any) -> Transcript | None:
    return None if given is None else msgspec.convert({**given, "logprobs": None}, Transcript)
