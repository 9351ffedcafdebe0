# SPDX-License-Identifier: Apache-2.0
"""Replays what the engine did to trees, so that the front end has the same ones.

A `DependencyManager` of its own keeps the trees, and `sequence_hooks.tree.transcript` tells of them as on every engine.
"""

from collections.abc import Iterator
from functools import singledispatchmethod
from typing import Any

from msgspec import structs

from sequence_hooks.config.limits import Limits
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.events import Aborted, Assembled, Blocked, Ended, Joined, Spawned, TreeEvent
from sequence_hooks.tree.ids import child_id
from sequence_hooks.tree.manager import DependencyManager
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.rules import Merge, segments
from sequence_hooks.v1.frontend.sequences import OutputSequence
from sequence_hooks.v1.wire import LoggedEvent

FrontBranch = Branch[OutputSequence]


class Replay:
    """The trees of a front end's requests.

    Args:
        tokenizer: The model's; None if the engine has none.
        num_recent: See `DependencyManager`.
    """

    def __init__(self, tokenizer: Any, num_recent: int = 0) -> None:
        self.trees: DependencyManager[OutputSequence] = DependencyManager(num_recent=num_recent)
        self.tokenizer = tokenizer
        self._branches: dict[str, FrontBranch] = {}
        """By the engine's ids. To its caller a request has the id that the caller gave it, and so have its children."""

    def branch_of(self, request_id: str) -> FrontBranch | None:
        """The branch of a sequence in a tree of an unfinished request."""
        return self._branches.get(request_id)

    def known(self, request_id: str) -> FrontBranch:
        """The same, of a sequence that is known to be in one."""
        return self._branches[request_id]

    def span(self, told: Span) -> Span:
        """What the engine tells, with the names that its caller knows."""
        owner, prefix_of = (
            None if name is None else self._branches[name].request_id for name in (told.child, told.prefix_of)
        )
        return structs.replace(told, child=owner, prefix_of=prefix_of)

    @property
    def has_trees(self) -> bool:
        """Whether any unfinished request has a tree."""
        return bool(self._branches)

    def add_root(self, root: OutputSequence, limits: Limits) -> FrontBranch:
        """Make a request's own sequence the root of a tree."""
        branch = self._branches[root.engine_id] = self.trees.add_root(root, limits)
        return branch

    def forget(self, root: FrontBranch) -> None:
        """Forget the tree of a request that has finished or was aborted."""
        for branch in list(root.subtree()):
            del self._branches[branch.sequence.engine_id]
            if branch.phase != "finished":
                branch.sequence.finish_reason = branch.sequence.finish_reason or "abort"
                self.trees.abort(branch)

    def replay(self, logged: LoggedEvent) -> FrontBranch | None:
        """Do to the trees what the engine did; return the branch that it happened to.

        None if its request is no longer known: it was aborted while the engine's outputs were on their way.
        """
        branch = self._branches.get(logged.event.request_id)
        if branch is not None:
            self._replay(logged.event, branch, logged)
        return branch

    @singledispatchmethod
    def _replay(self, event: TreeEvent, branch: FrontBranch, logged: LoggedEvent) -> None:
        raise TypeError(f"{event} is not an event")

    @_replay.register
    def _(self, event: Spawned, parent: FrontBranch, logged: LoggedEvent) -> None:
        engine_id, num_shared = event.spec.request_id, event.spec.num_shared
        name = child_id(parent.request_id, event.spec.number)
        # A context may be long: it is copied once.
        prompt = parent.sequence.prompt_token_ids[:num_shared]
        prompt += parent.sequence.output_token_ids[: num_shared - len(prompt)]
        prompt += event.spec.prefix_token_ids
        assert logged.text_params is not None
        child = OutputSequence.of_child(name, engine_id, prompt, logged.text_params, self.tokenizer)
        spec = structs.replace(event.spec, request_id=name, parent_id=parent.request_id)
        self._branches[engine_id] = self.trees.spawn(parent, spec, None, child)

    @_replay.register
    def _(self, event: Assembled, branch: FrontBranch, logged: LoggedEvent) -> None:
        """Changes no tree: it is what a caller is told."""

    @_replay.register
    def _(self, event: Blocked, branch: FrontBranch, logged: LoggedEvent) -> None:
        # One that has ended is BLOCKED by its end.
        if branch.ended_as is None:
            self.trees.block(branch, event.waits_for)

    @_replay.register
    def _(self, event: Ended, branch: FrontBranch, logged: LoggedEvent) -> None:
        assert logged.text_end is not None
        branch.sequence.outcome, branch.sequence.finish_reason = event.outcome, logged.text_end.finish_reason
        self.trees.end(branch, range(*event.ending))

    @_replay.register
    def _(self, event: Aborted, branch: FrontBranch, logged: LoggedEvent) -> None:
        branch.sequence.finish_reason = "abort"
        self.trees.abort(branch)

    @_replay.register
    def _(self, event: Joined, branch: FrontBranch, logged: LoggedEvent) -> None:
        sequence = branch.sequence
        start = len(sequence.output_token_ids)
        for span in event.spans:
            child = None if span.child is None else self._branches[span.child]
            token_ids = list(span.token_ids)
            entries = None if child is None else child.sequence.entries(span.positions)
            sequence.merge(token_ids, sequence.entries_of_inserted(token_ids) if entries is None else entries)
        spans = tuple(map(self.span, event.spans))
        merge = Merge(
            position=start,
            spans=spans,
            segments=tuple(segments(spans, start)),
            num_cut=event.num_cut,
            num_context=len(sequence.prompt_token_ids) + len(sequence.output_token_ids),
            ends_at_length=event.ends_at_length,
            error=event.error,
        )
        self.trees.join(branch, merge, event.num_prefill, event.num_injected)

    def awaiting(self) -> Iterator[FrontBranch]:
        """The sequences that wait for a caller."""
        return (branch for branch in self._branches.values() if branch.awaits_resume)
