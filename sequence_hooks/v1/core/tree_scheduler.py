# SPDX-License-Identifier: Apache-2.0
"""Moves requests as the rules and trees say: upstream's scheduler, in which requests spawn, wait for and join others.

    spawn              WAITING ──► RUNNING
    promise, sync      RUNNING ──► BLOCKED      its row in the worker's batch is freed
    its own end        RUNNING ──► BLOCKED      with children still unjoined
    children finished  BLOCKED ──► WAITING      KV kept: computes what is new; KV given up: finds or recomputes it
                               ──► FINISHED_*   it had ended, or has no room left

How a request is BLOCKED, and whose KV is given up meanwhile, is the business of `BlockingScheduler`; how it gets KV of
its children, that of `InjectingScheduler`.
"""

from collections.abc import Callable
from typing import Any

from sequence_hooks.handlers import TokenHandler
from sequence_hooks.handlers.triggers import TriggerMatch
from sequence_hooks.trace.observer import SILENT, TreeNotes
from sequence_hooks.trace.recorder import Recorder
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.injection import Context, InjectedKV, plan_injection
from sequence_hooks.tree.manager import DependencyManager
from sequence_hooks.tree.rules import Decision, Merge, keeps_kv, ready
from sequence_hooks.v1.core.event_log import EventLog
from sequence_hooks.v1.core.forks import check_kv_groups
from sequence_hooks.v1.core.hooks import Hooks, ending_of
from sequence_hooks.v1.core.params import params_after_join
from sequence_hooks.v1.core.recording import RecordingScheduler
from sequence_hooks.v1.core.requests import begin_session
from sequence_hooks.v1.core.sequence import V1Branch, V1Sequence
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.request import Request, RequestStatus


class TreeScheduler(RecordingScheduler):
    """Owns the trees of all requests, whose events the front ends learn of."""

    _append: Callable[..., tuple[list[int], bool]]
    """Upstream's own way to give a request a new token; this scheduler's is `_sample`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._branches: dict[str, V1Branch] = {}
        """The unfinished requests that a hook has touched, and all unfinished children."""

        self._event_log = EventLog()
        self.attach(Hooks.of(self.vllm_config, self.structured_output_manager))
        special_kwargs = self.hooks.special_kwargs
        check_kv_groups(self.kv_cache_config)
        observer = SILENT if special_kwargs.record_to is None else Recorder(special_kwargs.record_to)
        self.trees: DependencyManager[V1Sequence] = DependencyManager((TreeNotes(observer), self._event_log))
        self.observe(observer, lambda *tokens: self.hooks.decode(*tokens))
        self.relieve_by(special_kwargs.blocked_kv_policy, observer)
        if special_kwargs.injects_kv:
            self.share_no_injected_blocks()
            self._shifts_positions = special_kwargs.position_rule == "overlap"

    def attach(self, hooks: Hooks) -> None:
        """Use ``hooks``; must be called before the first request."""
        self.hooks = hooks
        self._triggers, self._candidates = hooks.decider.triggers, hooks.decider.triggers.candidates

    def branch_of(self, request_id: str) -> V1Branch | None:
        """The branch of an unfinished request; None if no hook has touched it."""
        return self._branches.get(request_id)

    def _sample(self, request: Request, new_token_ids: list[int], is_stale: bool = False) -> tuple[list[int], bool]:
        """In place of upstream's `_update_request_with_output`."""
        branch = self._branches.get(request.request_id)
        token_id = new_token_ids[-1]
        match = self._match(token_id, request, branch) if token_id in self._candidates else None
        if branch is None and match is None:
            return self._append(request, new_token_ids, is_stale)
        branch = self._add_root(request) if branch is None else branch
        decision = self.hooks.decider.decide(token_id, match, branch) if match and branch.limits.hooks else None
        if branch.phase == "finished":
            # Its own handler has aborted it.
            _cache_nothing(request)
            return [], False
        new_token_ids, stopped = self._append(request, new_token_ids, is_stale)
        stopped = stopped or self._ends_full(request)
        ending = ending_of(branch.sequence, token_id)
        if ending is not None:
            self._end(branch, ending)
            return new_token_ids, True
        if decision is not None:
            stopped = self._carry_out(decision, branch)
        return new_token_ids, stopped

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        branch = self._branches.pop(request.request_id, None)
        if branch is not None:
            if branch.phase != "finished":
                self._abort(branch)
            if self.hooks.special_kwargs.injects_kv and keeps_kv(branch):
                self._kept.keep(branch)
        freed: tuple[Any, Any] = super()._free_request(request, *args, **kwargs)
        return freed

    def _match(self, token_id: int, request: Request, branch: V1Branch | None) -> TriggerMatch | None:
        """The hook that a token which comes next in a request's context fires, if any."""
        num_sampled = request.num_output_tokens if branch is None else branch.num_sampled_last
        return self._triggers.match(token_id, request.all_token_ids, num_sampled)

    def _add_root(self, request: Request) -> V1Branch:
        branch = self.trees.add_root(self.hooks.sequence_of(request), self.hooks.limits_of(request))
        self._branches[request.request_id] = branch
        return branch

    def _carry_out(self, decision: Decision, branch: V1Branch) -> bool:
        """Spawn and block as decided; return whether the sequence is BLOCKED now."""
        children = self.hooks.decider.children(decision, branch)
        if branch.phase == "finished":
            # Code of a user's in the children's parameters has aborted it.
            _cache_nothing(branch.sequence.request)
            return False
        if children is None:
            return False
        for (spec, _), child in zip(decision.children, children, strict=True):
            self._spawn(branch, spec, decision.handler, child)
        if decision.waits_for is None:
            return False
        self.trees.block(branch, decision.waits_for)
        self._block(branch.sequence.request)
        return True

    def _spawn(self, parent: V1Branch, spec: ChildSpec, handler: TokenHandler, child: Request) -> None:
        """Queue a child with a fork of its parent's blocks."""
        self._branches[spec.request_id] = self.trees.spawn(parent, spec, handler, self.hooks.sequence_of(child))
        self._forks.add(parent.sequence.request, child, spec.num_shared)
        self.requests[spec.request_id] = child
        self._enqueue_waiting_request(child)
        if self.log_stats:
            child.record_event(EngineCoreEventType.QUEUED)

    def _end(self, branch: V1Branch, ending: range) -> None:
        """Note that a sequence has ended. With unjoined children it is BLOCKED until they have finished."""
        branch.sequence.note_end()
        if not self.trees.end(branch, ending):
            self._block(branch.sequence.request)

    def _is_of_a_tree(self, request: Request) -> bool:
        return request.request_id in self._branches or request.request_id in self._glue

    def _injected_of(self, request: Request) -> InjectedKV | None:
        branch = self._branches.get(request.request_id)
        return None if branch is None else branch.injected

    def _starts_over(self, request: Request) -> None:
        if request.request_id in self._branches:
            self._branches[request.request_id].discard_injected()

    def _settle(self) -> None:
        while self.trees.has_unsettled:
            unsettled = self.trees.take_unsettled()
            # A join may finish its sequence, so that its parent is ready too.
            for branch in ready(unsettled):
                self._resume(branch)
            for branch in unsettled:
                self._let_go(branch)

    def _resume(self, branch: V1Branch) -> None:
        request = branch.sequence.request
        merge = self.hooks.merger.merge(branch)
        if branch.phase != "blocked":
            # Its own join function has aborted it.
            return
        ends = branch.ended_as is not None or merge.ends_at_length
        injected = None if ends else self._inject(branch, merge)
        num_injected = 0 if injected is None else len(injected.copies)
        num_prefill = 0 if ends else request.num_tokens - request.num_computed_tokens - num_injected
        self.trees.join(branch, merge, num_prefill, num_injected)
        self._unblock(request)
        if not ends:
            begin_session(request, params_after_join(branch))
            request.status = RequestStatus.WAITING
            if injected is not None:
                self._begin_injected(request, injected)
            self._enqueue_waiting_request(request)
        if injected is None:
            self._release_kept(request)
        self._let_go(branch)
        if ends:
            self._finish(branch)

    def _let_go(self, branch: V1Branch) -> None:
        """Drop the contexts of children that nobody needs any more."""
        for below in branch.take_releasable():
            below.sequence.let_go()

    def _inject(self, branch: V1Branch, merge: Merge) -> InjectedKV | None:
        """Let a BLOCKED branch have its children's KV, if it has its own, and there are slots."""
        request = branch.sequence.request
        if not self._kept or not request.num_computed_tokens:
            return None
        context = Context(merge.num_context - merge.num_merged, request.num_computed_tokens, branch.injected)
        sources = {child.request_id: self._kept.source(child) for child in branch.unjoined}
        injected = plan_injection(context, merge.spans, sources, self.hooks.special_kwargs.position_rule)
        if injected is None or not self._has_slots(request):
            return None
        branch.inject(injected)
        return injected

    def _finish(self, branch: V1Branch) -> None:
        """Finish a sequence with the end it had, or with the model's length, after its join."""
        request = branch.sequence.request
        request.status = branch.sequence.ended_with or RequestStatus.FINISHED_LENGTH_CAPPED
        self._end(branch, branch.ending)
        if branch.phase == "blocked":
            # A join has filled the model's length, and detached children are not done.
            return
        self._free_request(request)
        if branch.parent is None:
            if branch.has_detached_below:
                self.trees.assemble(branch, self.hooks.merger.assemble(branch).spans)
            self._event_log.finish(branch)

    def _abort(self, branch: V1Branch) -> None:
        self._unblock(branch.sequence.request)
        self._forks.release(branch.request_id)
        self._stop_injecting(branch.sequence.request)
        self.trees.abort(branch)
        below = [child.request_id for child in branch.subtree() if child.phase != "finished"]
        self.finish_requests(below, RequestStatus.FINISHED_ABORTED)


def _cache_nothing(request: Request) -> None:
    """Let upstream enter no blocks of a request, which was aborted in this step and has none, into its prefix cache."""
    request.num_computed_tokens = 0
