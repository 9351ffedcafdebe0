# SPDX-License-Identifier: Apache-2.0
"""Reads a recorded run, and checks each line against the format of `sequence_hooks.trace.events`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sequence_hooks.trace.events import FORMAT_VERSION, AnyEvent, AnyLine, Header

_WAY_OUT = "delete the line, or record the run again"


class TraceError(ValueError):
    """A file is not a recorded run; the message names the file, the line and the way out."""


@dataclass(frozen=True)
class Recording:
    """A file that was read."""

    path: Path
    run: Header
    events: tuple[AnyEvent, ...]
    """In the file's order; the first one is on line 2."""

    is_cut_off: bool
    """Whether its last line is incomplete and left out, because the engine ended while writing it."""


def read(path: Path) -> Recording:
    """The run that was recorded to ``path``.

    Raises:
        TraceError: a line is not an event, or the file has another version of the format.
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    is_cut_off = bool(data) and not data.endswith(b"\n")
    lines = _decoded(path, data.splitlines()[: -1 if is_cut_off else None])
    run = next(lines, None)
    if not isinstance(run, Header):
        raise TraceError(f"{path}, line 1: a recorded run begins with its header; record to an empty file")
    if run.version != FORMAT_VERSION:
        raise TraceError(
            f"{path}, line 1: version {run.version} of the format, and this reads version {FORMAT_VERSION}; "
            "read it with the release that recorded it"
        )
    events: list[AnyEvent] = []
    for number, line in enumerate(lines, 2):
        if isinstance(line, Header):
            raise TraceError(f"{path}, line {number}: a second header; {_WAY_OUT}")
        events.append(line)
    return Recording(path, run, tuple(events), is_cut_off)


def _decoded(path: Path, lines: list[bytes]) -> Iterator[AnyLine]:
    decoder = msgspec.json.Decoder(AnyLine)
    for number, line in enumerate(lines, 1):
        try:
            yield decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(f"{path}, line {number}: {error}; {_WAY_OUT}") from None
