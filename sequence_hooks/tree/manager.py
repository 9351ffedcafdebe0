# SPDX-License-Identifier: Apache-2.0
"""The trees of an engine's requests: which sequence waits for which, and what happened to each.

`DependencyManager` owns all trees of one scheduler; a `Branch` is one sequence in one of them. An engine makes, queues
and frees sequences, and tells the manager what happened to them. `sequence_hooks.tree.rules` says what has to happen
next, and draws the life of a tree. Only the manager and its branches write a tree's state.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic

from sequence_hooks.config.limits import Limits, RefusedBy
from sequence_hooks.handlers import TokenHandler
from sequence_hooks.results import Join
from sequence_hooks.tree.branch import Branch, Phase, S
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.events import (
    Aborted,
    Assembled,
    Blocked,
    Cancelled,
    Ended,
    Joined,
    Limited,
    Recomputed,
    Spawned,
    TreeEvent,
    TreeObserver,
)
from sequence_hooks.tree.integrity import IntegrityError, faults_of, report_trees
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.replacement import NO_REPLACEMENT, Replacement
from sequence_hooks.tree.resume import find_waiting
from sequence_hooks.tree.rules import Merge
from sequence_hooks.tree.sequence import Outcome
from sequence_hooks.tree.stats import HookStats
from sequence_hooks.tree.tree import Tree
from sequence_hooks.tree.wait import ALL, Wait


class IllegalStep(RuntimeError):
    """A branch was asked to take a step that its phase does not allow."""


class DependencyManager(Generic[S]):
    """Owns the trees of all requests of one scheduler: which branch waits for which, and which to check next.

    Args:
        observers: Are told of each event, in this order.
        clock: A monotonic clock, in seconds.
        num_recent: How many ended trees to remember.
    """

    def __init__(
        self,
        observers: Iterable[TreeObserver] = (),
        clock: Callable[[], float] = time.monotonic,
        num_recent: int = 0,
    ) -> None:
        self.stats = HookStats()
        self._observers = tuple(observers)
        self._clock = clock
        self._roots: dict[Branch[S], None] = {}
        """An ordered set: two callers may have given their requests the same id."""

        self._recent: deque[Branch[S]] = deque(maxlen=num_recent)
        self._unsettled: dict[Branch[S], None] = {}
        """Branches to check before the next step, in order."""

        self._used_up: dict[Branch[S], None] = {}
        """The roots of trees that may sample no more, whose sequences have to end before the next step, in order."""

    def add_root(self, sequence: S, limits: Limits) -> Branch[S]:
        """Make a request's own sequence, or that of one of its samples, the root of a tree."""
        root: Branch[S] = Branch(sequence, Tree(limits))
        self._roots[root] = None
        return root

    def spawn(self, parent: Branch[S], spec: ChildSpec, handler: TokenHandler | None, sequence: S) -> Branch[S]:
        """Add the child of this ``spec``, whose ``sequence`` the engine has made.

        Args:
            handler: Joins it to its parent; None where no handler is asked.
        """
        self._require(parent, "live", "spawn")
        child = Branch(sequence, parent.tree, parent, spec, handler)
        if spec.num_shared:
            child.place(parent.positions)
            if parent.injected is not None:
                child.inject(parent.injected.for_child())
        parent.add_child(child)
        self.stats.num_spawned += 1
        self._tell(child, Spawned(spec))
        return child

    def limit(self, branch: Branch[S], name: RefusedBy) -> None:
        """Record what has refused a promise, or that the tree of ``branch`` has used up its tokens."""
        root = branch.root
        if name == "max_tree_tokens":
            self._used_up[root] = None
        else:
            self.stats.num_refused[name] += 1
        self.stats.num_limited[name] += name not in root.tree.limits_met
        root.tree.limits_met[name] = None
        self._tell(branch, Limited(branch.request_id, name))

    def stop_waiting(self, branch: Branch[S], wait: Wait) -> bool:
        """Let a sequence of a tree that has used up its tokens wait for nothing but its children.

        Args:
            wait: How a sequence waits for all of its children at its end. A sequence that is BLOCKED already keeps the
                ``join_when`` of its wait; and if children are cancelled at an end, also the children that it has named.

        Returns:
            Whether it was live, and is BLOCKED now.
        """
        if branch.phase == "live":
            self.block(branch, wait)
            return True
        numbers = branch.wait.numbers if wait.join_when == 0 else None
        branch.paused_for_caller, branch.wait = False, Wait(numbers=numbers, join_when=branch.wait.join_when)
        self.recheck(branch)
        return False

    def block(self, branch: Branch[S], wait: Wait, replacement: Replacement = NO_REPLACEMENT) -> None:
        """Let a branch wait for its children, or for some of them, and also for a caller if ``wait`` says so.

        Args:
            replacement: What its join does besides merging.
        """
        self._require(branch, "live", "block")
        branch.paused_for_caller, branch.replacement = wait.waits_for == "caller", replacement
        self._set_aside(branch, wait)

    def resume(self, branch: Branch[S], token_ids: tuple[int, ...]) -> None:
        """Record that a caller has resumed a branch, with ``token_ids`` appended after its children's results."""
        if not branch.paused_for_caller:
            raise IllegalStep(f"{branch.request_id} does not wait for a caller")
        branch.paused_for_caller, branch.resumed_with = False, token_ids
        self.recheck(branch)

    def end(self, branch: Branch[S], stop_tokens: range | None = None, wait: Wait = ALL) -> bool:
        """Record that a sequence has ended: for good, or except for the results of its unjoined children.

        Args:
            stop_tokens: The output tokens that ended it and are not part of its result; None if it ended at a join.
            wait: How it waits for its children.

        Returns:
            Whether it has finished. If not, it is BLOCKED until its children have finished.
        """
        self._require(branch, "live", "end")
        # Callers are told of a tree as a whole, after all of its tokens, so an end with detached children takes a
        # separate step.
        has_detached = branch.outcome is None and branch.detached
        branch.finished_time = time.time()
        branch.outcome = branch.outcome or branch.sequence.outcome
        branch.stop_tokens = branch.stop_tokens if stop_tokens is None else stop_tokens
        assert branch.outcome is not None, "its sequence knows how it has ended"
        ended = Ended(branch.request_id, branch.outcome, (branch.stop_tokens.start, branch.stop_tokens.stop))
        if has_detached or branch.must_wait_at_end:
            self._tell(branch, ended)
            self._set_aside(branch, wait)
            return False
        self._finish(branch)
        self._tell(branch, ended)
        return True

    def abort(self, branch: Branch[S]) -> None:
        """Record that a sequence was aborted, in any phase."""
        self._finish_as(branch, "failed")
        self._tell(branch, Aborted(branch.request_id))

    def cancel(self, branch: Branch[S]) -> None:
        """Record that the parent of a child, or of one of its ancestors, continues without it.

        Unless the child had already finished, it ends as cancelled.
        """
        if branch.parent is None or branch.is_cancelled:
            raise IllegalStep(f"{branch.request_id} is no child that can be cancelled")
        branch.cancel()
        if branch.phase != "finished":
            self._finish_as(branch, "cancelled")
        self.stats.num_cancelled += 1
        self._tell(branch, Cancelled(branch.request_id))

    def discard_injected(self, branch: Branch[S]) -> None:
        """Record that a sequence has given up all of its KV; its callers are told of it if any was injected."""
        if branch.injected is not None:
            branch.discard_injected()
            self.recompute(branch, len(branch.sequence.output_token_ids))

    def recompute(self, branch: Branch[S], position: int) -> None:
        """Record that a sequence with so many output tokens computes its context again, in which KV was injected."""
        branch.recomputed_at.append(position)
        self._tell(branch, Recomputed(branch.request_id, position))

    def join(
        self,
        branch: Branch[S],
        children: Sequence[Branch[S]],
        merge: Merge,
        num_prefill: int,
        injected: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """Record that a BLOCKED branch got what it waited for, and that the engine has appended it.

        One that only waited for detached children before it finishes is joined with nothing, and has no `Join`.

        Args:
            children: The children whose results it got.
            merge: What `sequence_hooks.tree.rules.join` returned.
            num_prefill: Tokens to compute before the next one can be sampled; 0 if it ends with the join.
            injected: Which output tokens came with their KV: from, to (exclusive).
        """
        self._require(branch, "blocked", "join")
        branch.settle(children)
        # A child that ended in the same round may have queued it for another check.
        self._unsettled.pop(branch, None)
        # A tree that has used up its tokens joins sequences that did not ask for it; an empty join of one is no join.
        is_empty = not merge.spans and not merge.num_replaced
        has_asked = branch.outcome is None and not (merge.outcome == "length" and is_empty)
        is_merged = has_asked or bool(children)
        branch.stop_waiting()
        branch.phase, branch.resumed_with, branch.paused_for_caller = "live", (), False
        branch.replacement = NO_REPLACEMENT
        branch.outcome = branch.outcome or merge.outcome
        branch.finished_at_join = branch.outcome is not None
        if is_merged:
            self._note_join(branch, children, merge, merge.as_join(num_prefill, injected))
        event = Joined(
            request_id=branch.request_id,
            children=tuple(child.request_id for child in children),
            spans=merge.spans,
            num_cut=merge.num_cut,
            num_prefill=num_prefill,
            injected=injected,
            ends_as=merge.outcome,
            error=merge.error,
            num_replaced=merge.num_replaced,
        )
        self._tell(branch, event)

    def assemble(self, root: Branch[S], spans: Sequence[Span]) -> None:
        """Record that a request's output has got the results of all detached children.

        Args:
            spans: The output, see `sequence_hooks.tree.assembly`.
        """
        children = tuple(branch.request_id for branch in root.subtree() if branch.is_detached)
        self._tell(root, Assembled(root.request_id, children, tuple(spans)))

    def recheck(self, branch: Branch[S]) -> None:
        """Have `take_unsettled` return ``branch``, once."""
        self._unsettled[branch] = None

    def take_used_up(self) -> list[Branch[S]]:
        """Remove and return the roots of the trees whose sequences have to end."""
        taken, self._used_up = list(self._used_up), {}
        return taken

    def take_unsettled(self) -> list[Branch[S]]:
        """Remove and return the branches whose wait may be over. The engine joins those that are ready."""
        taken, self._unsettled = list(self._unsettled), {}
        return taken

    @property
    def has_unsettled(self) -> bool:
        """Whether some branch has to be checked, or to end, before the next step."""
        return bool(self._unsettled or self._used_up)

    @property
    def roots(self) -> Iterator[Branch[S]]:
        """The roots of all trees that have not ended, in the order in which they began."""
        return iter(self._roots)

    @property
    def recent(self) -> Iterator[Branch[S]]:
        """The roots of the trees that have ended last."""
        return iter(self._recent)

    @property
    def branches(self) -> Iterator[Branch[S]]:
        """All branches of all trees whose root has not finished."""
        return chain.from_iterable(root.subtree() for root in self._roots)

    def awaiting_resume(self) -> Iterator[Branch[S]]:
        """The BLOCKED branches that wait for a caller."""
        return (branch for branch in self.branches if branch.paused_for_caller)

    def paused_branch(self, request_id: str) -> Branch[S]:
        """The branch with this id that waits for its caller; raises a `ValueError` that names the branches that do."""
        return find_waiting(request_id, {branch.request_id: branch for branch in self.awaiting_resume()})

    def check_integrity(self) -> None:
        """Raise an `IntegrityError` that shows all trees if they are inconsistent."""
        for branch in self.branches:
            for fault in faults_of(branch):
                raise IntegrityError(f"{branch.request_id} {fault}\n{self.report()}")
        if strays := [branch.request_id for branch in self._unsettled if branch.phase == "finished"]:
            raise IntegrityError(f"{strays} have finished, and are still to be looked at\n{self.report()}")

    def report(self) -> str:
        """All trees, one line per sequence."""
        return report_trees(self.branches)

    def _set_aside(self, branch: Branch[S], wait: Wait) -> None:
        branch.phase, branch.blocked_since, branch.blocked_time = "blocked", self._clock(), time.time()
        branch.wait = wait
        self.recheck(branch)
        self._tell(branch, Blocked(branch.request_id, wait.waits_for, wait.numbers, wait.join_when))

    def _note_join(self, branch: Branch[S], children: Sequence[Branch[S]], merge: Merge, join: Join) -> None:
        branch.joins.append(join)
        if merge.num_replaced:
            branch.replace_last(merge.num_replaced, merge.position)
        branch.merged += merge.segments
        num_failed = sum(child.has_failed for child in children)
        self.stats.note_join(join, num_failed, self._clock() - branch.blocked_since)

    def _tell(self, branch: Branch[S], event: TreeEvent) -> None:
        for observer in self._observers:
            observer.note(branch, event)

    def _finish_as(self, branch: Branch[S], outcome: Outcome) -> None:
        if branch.phase == "blocked":
            branch.stop_waiting()
        branch.finished_time, branch.outcome, branch.paused_for_caller = time.time(), outcome, False
        self._finish(branch)

    def _finish(self, branch: Branch[S]) -> None:
        branch.phase = "finished"
        self._unsettled.pop(branch, None)
        if branch.parent is None:
            self._roots.pop(branch, None)
            self._used_up.pop(branch, None)
            self._recent.append(branch)
        elif branch.parent.phase != "finished":
            self.recheck(branch.parent)

    def _require(self, branch: Branch[S], phase: Phase, step: str) -> None:
        if branch.phase != phase:
            raise IllegalStep(f"{branch.request_id} is {branch.phase} and cannot {step}")
