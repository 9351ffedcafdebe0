# SPDX-License-Identifier: Apache-2.0
"""What a caller learns of a request's tree. All positions count the output tokens of one sequence."""

from dataclasses import dataclass
from typing import Literal

Origin = Literal["sampled", "merged", "separator"]


@dataclass(frozen=True)
class Segment:
    """The output tokens ``start`` to ``end`` (exclusive), and where they come from."""

    start: int
    end: int
    origin: Origin
    child: str | None = None
    """The child's request id, for "merged"."""


@dataclass(frozen=True)
class Resume:
    """One join: a BLOCKED sequence got its children's results and was scheduled again."""

    position: int
    """Output tokens before the join."""

    num_merged: int
    """Tokens spliced in, separators included."""

    num_prefill: int
    """Tokens to compute before the next one can be sampled: the merged ones and the last sampled one,
    or the whole context where the KV had to be given up."""

    num_context: int
    """Tokens in the context at the resume, prompt and merged tokens included."""


@dataclass(frozen=True)
class ChildOutput:
    """One child of a sequence, as it ended."""

    request_id: str
    spawn_position: int
    """Output tokens of its parent at the spawn, the promise included."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    """As in `CompletionOutput`; "abort" or "length" for a child that failed."""

    children: tuple["ChildOutput", ...]
    segments: tuple[Segment, ...]
    resumes: tuple[Resume, ...]
    spawn_time: float
    """Seconds since the epoch."""

    finished_time: float | None
    """Seconds since the epoch; None while it runs."""
