# SPDX-License-Identifier: Apache-2.0
"""What a caller learns of a request's tree. All positions count the output tokens of one sequence."""

from dataclasses import dataclass
from typing import Literal

Origin = Literal["sampled", "merged", "inserted"]


@dataclass(frozen=True)
class Segment:
    """The output tokens ``start`` to ``end`` (exclusive), and where they come from."""

    start: int
    end: int
    origin: Origin
    """"sampled" by this sequence, "merged" from a child's own output, or "inserted": sampled by nobody,
    like a separator, the text of a join function, or what `LLMEngine.resume_sequence` was given."""

    child: str | None = None
    """The child's request id, for "merged"."""


@dataclass(frozen=True)
class Join:
    """A BLOCKED sequence got what it waited for: its children's results, or nothing."""

    position: int
    """Output tokens before the join."""

    num_merged: int
    """Tokens appended, inserted ones included."""

    num_cut: int
    """Tokens left out because they would have passed the model's length."""

    num_context: int
    """Tokens in the context after the join, prompt included."""

    num_prefill: int = 0
    """Tokens to compute before the next one can be sampled: the last sampled one, the merged ones that came
    without KV, and what had to be given up. 0 where the sequence ends with the join."""

    error: str | None = None
    """What a join function raised; its children are then merged as nothing."""


@dataclass(frozen=True)
class TreeTokens:
    """The tokens of a completion's tree that it has not sampled itself. The others are its own output tokens."""

    sampled_below: int
    """What its children, and theirs, have sampled, merged or not."""

    merged: int
    """Of its output tokens, those that a child has sampled."""

    inserted: int
    """Of its output tokens, those that nobody has sampled."""


@dataclass(frozen=True)
class ChildOutput:
    """One child of a sequence, as it ended."""

    request_id: str
    spawn_position: int
    """Output tokens of its parent at the spawn, the promise included."""

    prefix_token_ids: tuple[int, ...]
    """What stood behind its parent's context at its start."""

    text: str
    token_ids: tuple[int, ...]
    result_token_ids: tuple[int, ...]
    """``token_ids`` without the EOS, stop token or stop string that ended it; empty if it failed."""

    finish_reason: str | None
    """As in `CompletionOutput`."""

    failed: bool
    """It was aborted, or could never fit."""

    children: tuple["ChildOutput", ...]
    segments: tuple[Segment, ...]
    joins: tuple[Join, ...]
    spawn_time: float
    """Seconds since the epoch."""

    finished_time: float | None
    """Seconds since the epoch; None while it runs."""


@dataclass(frozen=True)
class ChildDelta:
    """What a child has sampled, or got from its own children, since the last one."""

    request_id: str
    parent_id: str
    """The request id of the sequence that spawned it."""

    index: int
    """Of the completion that its tree is (n > 1)."""

    spawn_position: int
    """Output tokens of its parent at the spawn, the promise included."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    """As in `CompletionOutput`; not None with its last one."""
