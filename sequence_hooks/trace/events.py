# SPDX-License-Identifier: Apache-2.0
"""What a recorded run consists of: one JSON object per line, the first of which is a `Header`. See docs/trace.md.

Times are seconds of the machine's monotonic clock. A sequence is named by its request id.
"""

from typing import Any

import msgspec

from sequence_hooks.kv.eviction import EvictionMeans
from sequence_hooks.tree.events import Assembled, Blocked, Cancelled, Joined, Spawned

FORMAT_VERSION = 5


class Header(msgspec.Struct, frozen=True, tag_field="type", tag="run"):
    """The first line of a file."""

    version: int
    """The version of the format."""

    model: str
    hooks: dict[str, Any]
    """The fields of `SpecialKwargs` that are not at their defaults."""

    started: float
    """Seconds since the epoch."""


class Event(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """Something that happened in one scheduler; with pipeline parallelism there are several schedulers."""

    stream: str
    """The name of the scheduler, unique within the file."""

    time: float


class SchedulerStarted(Event, frozen=True):
    """A scheduler starts."""

    block_size: int
    num_blocks: int


class Arrived(Event, frozen=True):
    """A request arrived; with ``n > 1``, each of its samples."""

    sequence: str
    num_prompt_tokens: int
    prompt: str | None


class TreeChanged(Event, frozen=True, tag="tree"):
    """Something happened to a tree. An end is told by `Finished`, with the sequence's text."""

    event: Spawned | Blocked | Cancelled | Joined | Assembled


class Step(Event, frozen=True):
    """A step of the engine starts; if nothing is scheduled, the step before it has ended."""

    prefill: list[tuple[str, int]]
    """Sequences, and the number of tokens that each computes, without drafts."""

    decode: list[str]
    """Sequences that compute one token each, and drafts after it."""

    num_used_blocks: int
    num_unshared_blocks: int
    """Blocks that all sequences together would hold if they shared none."""

    num_blocked: int
    num_waiting: int


class Evicted(Event, frozen=True):
    """KV of a sequence that was set aside was evicted."""

    sequence: str
    means: EvictionMeans
    num_recomputed: int
    """Tokens to be recomputed."""


class Preempted(Event, frozen=True):
    """A running sequence was preempted, and gave up KV."""

    sequence: str
    means: EvictionMeans
    num_recomputed: int


class SwappedIn(Event, frozen=True):
    """KV was copied back from swap space."""

    sequence: str


class Finished(Event, frozen=True):
    """A sequence ended."""

    sequence: str
    reason: str
    """The engine's name for how it ended, such as "stopped" or "aborted"."""

    num_output_tokens: int
    text: str
    num_drafted: int = 0
    """Tokens that speculative decoding has drafted for it, and the model has computed."""

    num_accepted: int = 0
    """Those of them that the model has sampled, too."""

    num_taken_back: int = 0
    """Accepted ones that are not in its output, as they come after one that has blocked or ended it."""


AnyEvent = SchedulerStarted | Arrived | TreeChanged | Step | Evicted | Preempted | SwappedIn | Finished
AnyLine = Header | AnyEvent
