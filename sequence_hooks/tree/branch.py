# SPDX-License-Identifier: Apache-2.0
"""One sequence of a tree. Only its own methods and `sequence_hooks.tree.manager.DependencyManager` write its state."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic, Literal, TypeVar

from sequence_hooks.handlers import TokenHandler
from sequence_hooks.results import ChildOutput, Join, Segment
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.injection_plan import InjectedKV
from sequence_hooks.tree.positions import PLAIN, ChildPositions, Positions
from sequence_hooks.tree.replacement import NO_REPLACEMENT, replaced_ranges, with_replaced, within_context
from sequence_hooks.tree.sequence import HookedSequence, Outcome
from sequence_hooks.tree.tree import Tree
from sequence_hooks.tree.wait import ALL, Wait

S = TypeVar("S", bound=HookedSequence)

Phase = Literal["live", "blocked", "finished"]
"""The phase of a branch. "live": the engine may schedule it. "blocked": it waits for its children or for a caller."""


class Branch(Generic[S]):
    """One sequence of a tree: its parent, its children, and what was merged into it."""

    def __init__(
        self,
        sequence: S,
        tree: Tree,
        parent: "Branch[S] | None" = None,
        spec: ChildSpec | None = None,
        handler: TokenHandler | None = None,
    ) -> None:
        self.sequence = sequence
        self.tree = tree
        """The tree that it belongs to."""

        self.parent = parent
        self.spec = spec
        """How it was spawned; None for a root."""

        self.handler = handler
        """The handler of the token that spawned it, which also joins it to its parent; None for a root, and in a front
        end, which asks no handlers."""

        self.depth: int = 0 if parent is None else parent.depth + 1
        self.root: Branch[S] = self if parent is None else parent.root
        self.children: list[Branch[S]] = []
        """In spawn order."""

        self.detached: list[Branch[S]] = []
        """Its detached children."""

        self._num_counted = 0
        """How many of the tokens that it sampled are in its tree's count."""

        self.spawn_time = time.time()
        self.finished_time: float | None = None
        """When it ended, in seconds since the epoch; its children may run for longer."""

        self.phase: Phase = "live"
        self.outcome: Outcome | None = None
        """How it ended; set at its own end, even if it still waits for its children."""

        self.stop_tokens = range(0)
        """The output tokens that ended it and are not part of its result: EOS, a stop token, a stop string."""

        self._unjoined: dict[Branch[S], None] = {}
        """The children whose results it may still get, in spawn order: neither joined nor cancelled."""

        self.is_cancelled = False
        """Whether its parent has continued without it. Unless it had finished by then, it ended as cancelled, with all
        of its unfinished descendants."""

        self.wait: Wait = ALL
        """Which of its children it waits for, if it is BLOCKED."""

        self.merged: list[Segment] = []
        """The segments of its output that it did not sample itself, or that are not in its context any more."""

        self.num_replaced = 0
        """Output tokens that are not in its context."""

        self.replacement = NO_REPLACEMENT
        """What its next join does besides merging; nothing unless it is BLOCKED."""

        self.joins: list[Join] = []
        self.finished_at_join = False
        """Whether the last thing that happened before it finished was a join, not a token of its own."""

        self.paused_for_caller = False
        """Whether it stays BLOCKED until a caller resumes it, even if its children have finished."""

        self.resumed_with: tuple[int, ...] = ()
        """The token ids that the caller gave, to be appended after the children's results."""

        self.injected: InjectedKV | None = None
        """Which of its KV was injected; None if all of it is computed from its own context."""

        self.recomputed_at: list[int] = []
        """How many output tokens it had whenever it gave up injected KV."""

        self.positions: Positions = PLAIN
        """The positions of its context, regardless of which KV it has."""

        self._releasable: list[Branch[S]] = []
        """The children that were joined or cancelled, and whose contexts are not released yet."""

        self._detached_unreleased: list[Branch[S]] = []
        """The detached children whose contexts are still needed."""

        self.blocked_since = 0.0
        """When it was BLOCKED last, by the clock of its `DependencyManager`."""

        self.blocked_time = 0.0
        """The same, in seconds since the epoch."""

        self.waits: list[tuple[float, float]] = []
        """When it was BLOCKED before, and until when, by the same clock."""

        self._output: ChildOutput | None = None

    @property
    def request_id(self) -> str:
        """The id of its sequence."""
        return self.sequence.request_id

    @property
    def is_detached(self) -> bool:
        """Whether its parent neither waits for it nor sees it."""
        return self.spec is not None and self.spec.is_detached

    @property
    def sees_parent(self) -> bool:
        """Whether the context of a child begins with all that its parent had."""
        return self.spec is not None and self.spec.context == "parent"

    @property
    def unjoined(self) -> list["Branch[S]"]:
        """The children whose results may be merged, and are not yet, in spawn order."""
        return list(self._unjoined)

    @property
    def is_unjoined(self) -> bool:
        """Whether its parent may still get its result."""
        return self.parent is not None and self in self.parent._unjoined

    @property
    def awaited(self) -> list["Branch[S]"]:
        """The children that a BLOCKED branch waits for, in spawn order. It gets the results of some or all of them."""
        named = self.wait.numbers
        return [child for child in self._unjoined if named is None or child.number in named]

    @property
    def number(self) -> int:
        """Its index among its parent's children; 0 of a root."""
        return 0 if self.spec is None else self.spec.number

    @property
    def num_unfinished_children(self) -> int:
        """How many of its children have not finished."""
        return sum(child.phase != "finished" for child in (*self.unjoined, *self.detached))

    @property
    def num_awaited(self) -> int:
        """How many unfinished children a BLOCKED branch waits for: the detached ones only if it has ended."""
        awaited = self.awaited
        num_unfinished = sum(child.phase != "finished" for child in awaited)
        if self.wait.join_when is not None:
            num_results = sum(child.phase == "finished" and not child.has_failed for child in awaited)
            num_unfinished = min(num_unfinished, max(self.wait.join_when - num_results, 0))
        detached = self.detached if self.outcome is not None else ()
        return num_unfinished + sum(child.phase != "finished" for child in detached)

    @property
    def must_wait_at_end(self) -> bool:
        """Whether it would be BLOCKED if it ended now; once it has ended, whether it still is."""
        return bool(self._unjoined or self.num_awaited or (self.outcome is None and self.detached))

    @property
    def has_failed(self) -> bool:
        """Whether it was aborted or could never fit; not if it was cancelled."""
        return self.outcome == "failed"

    @property
    def stops_at_first_join(self) -> bool:
        """Whether it is a request's own sequence, which ends where it first gets its children's results."""
        return self.parent is None and self.tree.limits.end_at_join

    @property
    def num_context(self) -> int:
        """Tokens of its context: of its prompt, and of its output but for what was replaced."""
        return len(self.sequence.prompt_token_ids) + len(self.sequence.output_token_ids) - self.num_replaced

    @property
    def replaced(self) -> tuple[range, ...]:
        """The output tokens that are not in its context, in order."""
        return replaced_ranges(self.merged)

    @property
    def output_in_context(self) -> Sequence[int]:
        """Its context after its prompt."""
        token_ids = self.sequence.output_token_ids
        return list(within_context(token_ids, self.replaced)) if self.num_replaced else token_ids

    @property
    def num_sampled_below(self) -> int:
        """Tokens that it and its descendants have sampled."""
        return sum(branch.num_sampled for branch in self.subtree())

    @property
    def num_sampled(self) -> int:
        """Output tokens that it has sampled itself, whether they are in its context or not."""
        others = (segment.end - segment.start for segment in self.merged if segment.origin != "sampled")
        return len(self.sequence.output_token_ids) - sum(others)

    @property
    def num_sampled_last(self) -> int:
        """Output tokens that it has sampled since its latest join."""
        return len(self.sequence.output_token_ids) - (self.merged[-1].end if self.merged else 0)

    @property
    def sampled_token_ids(self) -> list[int]:
        """The output tokens that it has sampled itself."""
        token_ids = self.sequence.output_token_ids
        sampled = (each for each in self.segments if each.origin == "sampled")
        return [token_id for each in sampled for token_id in token_ids[each.start : each.end]]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Its output as segments, in order; every output token is in exactly one."""
        return _fill_with_sampled(self.merged, len(self.sequence.output_token_ids))

    @property
    def result_positions(self) -> list[int]:
        """The positions of the output tokens that a finished child's parent gets; none if the child failed, or was
        cancelled before its end."""
        if self.outcome in ("failed", "cancelled"):
            return []
        # What it got from its own children at its end comes after the tokens that ended it.
        found = [*range(self.stop_tokens.start), *range(self.stop_tokens.stop, len(self.sequence.output_token_ids))]
        gone = set(chain.from_iterable(self.replaced))
        return [position for position in found if position not in gone] if gone else found

    def subtree(self) -> Iterator["Branch[S]"]:
        """The branch itself and all its descendants, parents before children. Iterative: trees may have any depth."""
        left = [self]
        while left:
            branch = left.pop()
            yield branch
            left += reversed(branch.children)

    def count_sampled(self) -> None:
        """Count the tokens that it has sampled since the last call."""
        # A tree may be large, and this is called for each token: only the limit needs the count.
        if self.tree.limits.max_tree_tokens is not None:
            num_sampled = self.num_sampled
            self.tree.num_sampled += num_sampled - self._num_counted
            self._num_counted = num_sampled

    def add_child(self, child: "Branch[S]") -> None:
        """Add a child that was spawned just now."""
        self.children.append(child)
        self.tree.num_sequences += 1
        if child.is_detached:
            self.detached.append(child)
            self._detached_unreleased.append(child)
            self.tree.has_detached = True
        else:
            self._unjoined[child] = None

    def settle(self, children: Iterable["Branch[S]"]) -> None:
        """Record that it got the results of these ``children``, or continues without them."""
        for child in children:
            del self._unjoined[child]
            self._releasable.append(child)

    def cancel(self) -> None:
        """Record that its parent, or the parent of one of its ancestors, continues without its result."""
        # An output made before does not say that it was cancelled.
        self.is_cancelled, self._output = True, None
        if self.parent is not None and self.is_unjoined:
            self.parent.settle([self])

    def output(self, make: Callable[["Branch[S]"], ChildOutput]) -> ChildOutput:
        """What ``make`` returns for this child. Once the child has finished, the first result is kept."""
        if self._output is not None:
            return self._output
        made = make(self)
        self._output = made if self.phase == "finished" else None
        return made

    @property
    def child_positions(self) -> ChildPositions:
        """The positions of its tokens, for the join of its parent."""
        return ChildPositions(len(self.sequence.prompt_token_ids), self.positions, self.replaced)

    def stop_waiting(self) -> None:
        """Record that it is BLOCKED no more."""
        self.waits.append((self.blocked_time, time.time()))

    def place(self, positions: Positions) -> None:
        """Record the positions of its context."""
        self.positions = positions

    def replace_last(self, num_tokens: int, position: int) -> None:
        """Record that of its first ``position`` output tokens, the last ``num_tokens`` of its context were cut."""
        segments = with_replaced(_fill_with_sampled(self.merged, position), num_tokens)
        self.merged = [each for each in segments if each.is_replaced or each.origin != "sampled"]
        self.num_replaced += num_tokens

    def inject(self, injected: InjectedKV) -> None:
        """Record that KV was injected into its context."""
        self.injected = injected

    def discard_injected(self) -> None:
        """Record that its KV was discarded, and will be computed from its own context, at the same positions."""
        self.injected = None

    def take_releasable(self) -> list["Branch[S]"]:
        """Return, once, each descendant whose context is no longer needed: its parent has got its result, continues
        without it, or has finished; or it is detached and has finished."""
        left = self._take_children()
        taken: list[Branch[S]] = []
        while left:
            branch = left.pop()
            taken.append(branch)
            branch.injected, branch.positions = None, PLAIN
            # The children of an aborted branch are never joined.
            branch.settle(branch.unjoined)
            left += branch._take_children()
        return taken

    def _take_children(self) -> list["Branch[S]"]:
        """Return, once, each child that was joined or cancelled, and each detached child that has finished."""
        ended = [child for child in self._detached_unreleased if child.phase == "finished"]
        taken, self._releasable = [*self._releasable, *ended], []
        self._detached_unreleased = [child for child in self._detached_unreleased if child.phase != "finished"]
        return taken


def _fill_with_sampled(merged: Sequence[Segment], length: int) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    end = 0
    for segment in [*merged, Segment(length, length, "sampled")]:
        if segment.start > end:
            segments.append(Segment(end, segment.start, "sampled"))
        if segment.end > segment.start:
            segments.append(segment)
        end = segment.end
    return tuple(segments)
