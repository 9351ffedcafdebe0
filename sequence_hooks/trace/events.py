# SPDX-License-Identifier: Apache-2.0
"""What a recorded run consists of: one JSON object per line, the first of which is a `Header`. See docs/trace.md.

Times are seconds of the machine's monotonic clock. A sequence is named by its request id.
"""

from typing import Any

import msgspec

from sequence_hooks.config.choices import ChildContext
from sequence_hooks.kv.eviction import Means
from sequence_hooks.tree.sequence import WaitsFor

FORMAT_VERSION = 3


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


class Stream(Event, frozen=True):
    """A scheduler starts."""

    block_size: int
    num_blocks: int


class Arrived(Event, frozen=True):
    """A request arrived; with ``n > 1``, each of its samples."""

    sequence: str
    num_prompt_tokens: int
    prompt: str | None


class Spawned(Event, frozen=True):
    """A child was spawned."""

    sequence: str
    parent: str
    position: int
    """Output tokens of its parent, including the token that spawned it."""

    num_prompt_tokens: int
    prefix_token_ids: tuple[int, ...]
    context: ChildContext
    is_detached: bool
    """Whether nobody waits for it but the end of its request."""


class Step(Event, frozen=True):
    """A step of the engine starts; if nothing is scheduled, the step before it has ended."""

    prefill: list[tuple[str, int]]
    """Sequences, and the number of tokens that each computes."""

    decode: list[str]
    """Sequences that compute one token each."""

    num_used_blocks: int
    num_unshared_blocks: int
    """Blocks that all sequences together would hold if they shared none."""

    num_blocked: int
    num_waiting: int


class Blocked(Event, frozen=True):
    """A sequence is set aside until its children have finished, or a caller resumes it."""

    sequence: str
    until: WaitsFor


class Joined(Event, frozen=True):
    """A BLOCKED sequence got what it waited for. Counts are tokens, as in `sequence_hooks.results.Join`."""

    sequence: str
    children: list[str]
    num_merged: int
    num_prefill: int
    num_cut: int
    num_injected: int
    """Merged tokens that came with their KV."""


class Assembled(Event, frozen=True):
    """A request ended, and the results of detached children stand in its output."""

    sequence: str
    children: list[str]


class GaveUp(Event, frozen=True):
    """A sequence that was set aside gave up KV."""

    sequence: str
    means: Means
    num_recomputed: int
    """Tokens to be recomputed."""


class Preempted(Event, frozen=True):
    """A running sequence was preempted, and gave up KV."""

    sequence: str
    means: Means
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


AnyEvent = Stream | Arrived | Spawned | Step | Blocked | Joined | Assembled | GaveUp | Preempted | SwappedIn | Finished
AnyLine = Header | AnyEvent
