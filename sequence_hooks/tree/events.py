# SPDX-License-Identifier: Apache-2.0
"""What happens to trees, as values: every transition of a tree is one event, and its observers are told of each.

The same values stand in a recording, and travel from the core of a V1 engine to its front ends, which replay them.
"""

from typing import Any, Protocol

import msgspec

from sequence_hooks.config.limits import RefusedBy
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.merge import Span, num_tokens
from sequence_hooks.tree.sequence import Outcome
from sequence_hooks.tree.wait import Wait, WaitsFor


class _Event(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """Something that happened to the tree of the sequence ``request_id``."""


class Spawned(_Event, frozen=True):
    """A child was spawned."""

    spec: ChildSpec

    @property
    def request_id(self) -> str:
        """The parent, to which it happened."""
        return self.spec.parent_id


class Blocked(_Event, frozen=True):
    """A sequence is set aside. If it has ended before, it only waits for its unfinished children."""

    request_id: str
    waits_for: WaitsFor
    numbers: tuple[int, ...] | None = None
    """See `Wait`."""

    join_when: int | None = None

    @property
    def wait(self) -> Wait:
        """The same as a value."""
        return Wait(self.waits_for, self.numbers, self.join_when)


class Ended(_Event, frozen=True):
    """A sequence has ended: for good, so that its branch has finished, or except for the results of its children.

    In the latter case a `Blocked` follows.
    """

    request_id: str
    outcome: Outcome
    ending: tuple[int, int]
    """The output tokens that ended it and are not part of its result: from, to (exclusive)."""


class Aborted(_Event, frozen=True):
    """A sequence was aborted."""

    request_id: str


class Cancelled(_Event, frozen=True):
    """The parent of a sequence, or of one of its ancestors, continues without it.

    Unless the sequence had already finished, it ends as cancelled.
    """

    request_id: str


class Limited(_Event, frozen=True):
    """A promise of a sequence was refused, by a limit or for another reason. Only ``max_tree_tokens`` refuses none: it
    ends all sequences of the tree."""

    request_id: str
    """The sequence that has sampled the token."""

    limit: RefusedBy


class Joined(_Event, frozen=True):
    """A BLOCKED sequence got what it waited for. Counts are tokens, as in `sequence_hooks.results.Join`."""

    request_id: str
    children: tuple[str, ...]
    """The children whose results it got; none if it only waited for detached ones."""

    spans: tuple[Span, ...]
    """The tokens that were appended to it."""

    num_cut: int
    num_prefill: int
    injected: tuple[tuple[int, int], ...]
    ends_as: Outcome | None
    """How the sequence ends with this join; None if it continues."""

    error: str | None
    num_replaced: int = 0
    """Tokens that were cut from the end of its context before any were appended."""

    @property
    def num_merged(self) -> int:
        """Tokens that were appended to it."""
        return num_tokens(self.spans)

    @property
    def num_injected(self) -> int:
        """Merged tokens that came with their KV."""
        return sum(end - start for start, end in self.injected)


class Recomputed(_Event, frozen=True):
    """A sequence has given up all KV, with what was injected, and its context is computed again from its tokens."""

    request_id: str
    position: int
    """How many output tokens it has."""


class Assembled(_Event, frozen=True):
    """A request has ended, and the results of detached children stand in its output."""

    request_id: str
    children: tuple[str, ...]
    """The detached children."""

    spans: tuple[Span, ...]
    """Its output. Each names as its ``child`` the sequence whose own output has the tokens: the request itself, or one
    of its descendants."""


TreeEvent = Spawned | Limited | Blocked | Ended | Aborted | Cancelled | Joined | Recomputed | Assembled


class TreeObserver(Protocol):
    """Is told of each event as it happens. It changes no tree."""

    def note(self, branch: Branch[Any], event: TreeEvent) -> None:
        """Take note of an ``event`` that has just happened to ``branch``, which for `Spawned` is the child."""
