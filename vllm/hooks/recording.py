# SPDX-License-Identifier: Apache-2.0
"""What a recorded run is made of: one JSON object a line, the first one a `Run`. See docs/trace.md.

Times are seconds of the machine's monotonic clock. A sequence is named by its id in the engine (``seq``).
"""

import dataclasses
import itertools
import logging
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from vllm.hooks.config import SpecialKwargs

# Not vLLM's own way to it, which imports torch: recordings are read without an engine.
logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
Until = Literal["children", "caller"]
Means = Literal["recompute", "swap"]

_streams = itertools.count()


class Run(msgspec.Struct, frozen=True, tag_field="type", tag="run"):
    """The first line of a file."""

    version: int
    """Of the format."""

    model: str
    hooks: dict[str, Any]
    """The fields of `SpecialKwargs` that are not at their defaults."""

    started: float
    """Seconds since the epoch."""


class Event(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """Something happened in one scheduler; pipeline parallelism has several."""

    stream: str
    """Of the scheduler, unlike that of any other in the file."""

    time: float


class Stream(Event, frozen=True):
    """A scheduler begins."""

    block_size: int
    num_blocks: int


class Arrived(Event, frozen=True):
    """A request; with ``n > 1`` each of its samples."""

    seq: int
    request_id: str
    num_prompt_tokens: int
    prompt: str | None


class Spawned(Event, frozen=True):
    """A child."""

    seq: int
    request_id: str
    parent: int
    position: int
    """Output tokens of its parent, the promise included."""

    num_prompt_tokens: int
    prefix_token_ids: tuple[int, ...]


class Step(Event, frozen=True):
    """A step of the engine starts; or, with nothing scheduled, the one before has ended."""

    prefill: list[tuple[int, int]]
    """Sequences, and tokens to compute for each."""

    decode: list[int]
    """Sequences that compute one token."""

    num_used_blocks: int
    num_unshared_blocks: int
    """Blocks that the sequences would hold if they shared none."""

    num_blocked: int
    num_waiting: int


class Blocked(Event, frozen=True):
    """A sequence waits for its children, or for a caller."""

    seq: int
    until: Until


class Joined(Event, frozen=True):
    """A BLOCKED sequence got what it waited for. All counts are tokens, as in `vllm.hooks.results.Join`."""

    seq: int
    children: list[int]
    num_merged: int
    num_prefill: int
    num_cut: int
    num_injected: int
    """Of the merged ones, those that came with their KV."""


class GaveUp(Event, frozen=True):
    """A sequence that is set aside gave up KV."""

    seq: int
    means: Means
    num_recomputed: int
    """Tokens to compute again."""


class Preempted(Event, frozen=True):
    """A running sequence gave up KV."""

    seq: int
    means: Means
    num_recomputed: int


class SwappedIn(Event, frozen=True):
    """KV was copied back from swap space."""

    seq: int


class Finished(Event, frozen=True):
    """A sequence ended, with the name of its status: "stopped", "length_capped", "aborted", "ignored"."""

    seq: int
    reason: str
    num_output_tokens: int
    text: str


AnyEvent = Stream | Arrived | Spawned | Step | Blocked | Joined | GaveUp | Preempted | SwappedIn | Finished
AnyLine = Run | AnyEvent


class Recorder:
    """Writes the events of one scheduler, line by line: what was written outlives a crash.

    Where writing fails (a full disk), the engine goes on, and the recording ends there.
    """

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._stream = f"{os.getpid()}.{next(_streams)}"
        # Unbuffered and appending: a line is one write, behind all that other schedulers have written.
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        self._close = weakref.finalize(self, self._file.close)

    def note(self, kind: Callable[..., AnyEvent], /, at: float | None = None, **fields: Any) -> None:
        """Write one event, that happens now or happened ``at``."""
        if self._file.closed:
            return
        event = kind(stream=self._stream, time=self.clock() if at is None else at, **fields)
        try:
            self._file.write(msgspec.json.encode(event) + b"\n")
        except OSError:
            logger.exception("The recording %s ends here: it cannot be written to", self._file.name)
            self._close()


def begin(path: str, model: str, special_kwargs: "SpecialKwargs") -> None:
    """Make the file anew, with its first line.

    Raises:
        OSError: it cannot be written.
    """
    fields = [field for field in dataclasses.fields(special_kwargs) if field.name != "record_to"]
    given = {field.name: getattr(special_kwargs, field.name) for field in fields}
    hooks = {field.name: given[field.name] for field in fields if given[field.name] != field.default}
    run = Run(FORMAT_VERSION, model, hooks, time.time())
    Path(path).write_bytes(msgspec.json.encode(run, enc_hook=repr) + b"\n")
