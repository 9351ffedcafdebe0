# SPDX-License-Identifier: Apache-2.0
"""Replays what the engine did to trees, so that the front end has the same ones.

A `DependencyManager` of its own keeps the trees, and `sequence_hooks.tree.transcript` tells of them as on every engine.
Its observers are told of the same events as those of the core, with the names that callers know.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import structs

from sequence_hooks.config.limits import Limits
from sequence_hooks.tree.branch import Branch
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
    TreeObserver,
)
from sequence_hooks.tree.ids import child_id
from sequence_hooks.tree.manager import DependencyManager
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.rules import Merge, segments
from sequence_hooks.v1.frontend.sequences import OutputSequence
from sequence_hooks.v1.wire import ChildTextParams, LoggedEvent

FrontBranch = Branch[OutputSequence]


class Replay:
    """The trees of a front end's requests.

    Args:
        tokenizer: The model's; None if the engine has none.
        observers, num_recent: See `DependencyManager`.
    """

    def __init__(self, tokenizer: Any, observers: Iterable[TreeObserver] = (), num_recent: int = 0) -> None:
        self.trees: DependencyManager[OutputSequence] = DependencyManager(observers, num_recent=num_recent)
        self._tokenizer = tokenizer
        self.branches: dict[str, FrontBranch] = {}
        """The sequences of unfinished requests with a tree, by the engine's ids. To its caller a request has the id
        that the caller gave it, and so have its children."""

    def add_root(self, root: OutputSequence, limits: Limits) -> FrontBranch:
        """Make a request's own sequence the root of a tree."""
        branch = self.branches[root.engine_id] = self.trees.add_root(root, limits)
        return branch

    def forget(self, root: FrontBranch) -> None:
        """Forget the tree of a request that has finished or was aborted."""
        for branch in list(root.subtree()):
            del self.branches[branch.sequence.engine_id]
            if branch.phase != "finished":
                branch.sequence.finish_reason = branch.sequence.finish_reason or "abort"
                self.trees.abort(branch)

    def replay(self, events: Iterable[LoggedEvent]) -> None:
        """Do to the trees what the engine did.

        Nothing if a request is no longer known: it was aborted while the engine's outputs were on their way.
        """
        for logged in events:
            branch = self.branches.get(logged.event.request_id)
            if branch is not None:
                self._replay(branch, logged)

    def note_older_kv(self, engine_ids: Iterable[str]) -> None:
        """Note that these sequences, as far as they are known, run with KV which a pause of the engine has kept."""
        for branch in filter(None, map(self.branches.get, engine_ids)):
            branch.sequence.weights.has_older_kv = True

    def _replay(self, branch: FrontBranch, logged: LoggedEvent) -> None:
        event = logged.event
        match event:
            case Spawned():
                assert logged.text_params is not None
                self._spawn(branch, event.spec, logged.text_params)
            case Blocked():
                # One that has ended is BLOCKED by its end.
                if branch.outcome is None:
                    self.trees.block(branch, event.wait)
            case Limited():
                self.trees.limit(branch, event.limit)
            case Joined():
                self._join(branch, event)
            case Recomputed():
                self.trees.recompute(branch, event.position)
            case Ended():
                assert logged.text_end is not None
                branch.sequence.outcome, branch.sequence.finish_reason = event.outcome, logged.text_end.finish_reason
                self.trees.end(branch, range(*event.ending))
            case Aborted():
                branch.sequence.finish_reason = "abort"
                self.trees.abort(branch)
            case Cancelled():
                if branch.phase != "finished":
                    branch.sequence.finish_reason = "cancelled"
                self.trees.cancel(branch)
            case Assembled():
                self.trees.assemble(branch, [self._named(span) for span in event.spans])

    def _spawn(self, parent: FrontBranch, spec: ChildSpec, params: ChildTextParams) -> None:
        engine_id, num_shared = spec.request_id, spec.num_shared
        # A context may be long: it is copied once.
        prompt = parent.sequence.prompt_token_ids[:num_shared]
        prompt += parent.output_in_context[: num_shared - len(prompt)]
        prompt += spec.prefix_token_ids
        name = child_id(parent.request_id, spec.number)
        child = OutputSequence.of_child(name, engine_id, prompt, params, self._tokenizer)
        spec = structs.replace(spec, request_id=name, parent_id=parent.request_id)
        self.branches[engine_id] = self.trees.spawn(parent, spec, None, child)

    def _join(self, branch: FrontBranch, event: Joined) -> None:
        sequence, start = branch.sequence, len(branch.sequence.output_token_ids)
        for span in event.spans:
            sequence.merge(span, None if span.child is None else self.branches[span.child].sequence)
        spans = tuple(map(self._named, event.spans))
        merge = Merge(
            position=start,
            num_replaced=event.num_replaced,
            spans=spans,
            segments=tuple(segments(spans, start)),
            num_cut=event.num_cut,
            num_context=branch.num_context - event.num_replaced,
            outcome=event.ends_as,
            error=event.error,
        )
        children = [self.branches[child] for child in event.children]
        self.trees.join(branch, children, merge, event.num_prefill, event.injected)

    def _named(self, span: Span) -> Span:
        """What the engine tells, with the names that its caller knows."""
        child, prefix_of = (
            None if each is None else self.branches[each].request_id for each in (span.child, span.prefix_of)
        )
        return structs.replace(span, child=child, prefix_of=prefix_of)
