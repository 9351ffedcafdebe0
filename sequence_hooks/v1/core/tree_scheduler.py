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

from collections.abc import Callable, Sequence
from typing import Any

from sequence_hooks.handlers.triggers import TriggerMatch, Triggers
from sequence_hooks.trace.observer import SILENT, TreeNotes
from sequence_hooks.trace.recorder import Recorder
from sequence_hooks.tree.driver import ForkJoinDriver
from sequence_hooks.tree.injection import InjectedKV, Source
from sequence_hooks.tree.log import HookLog
from sequence_hooks.tree.told_once import ToldOnce
from sequence_hooks.v1.core.children import ChildRequests
from sequence_hooks.v1.core.event_log import EventLog
from sequence_hooks.v1.core.forks import check_kv_groups
from sequence_hooks.v1.core.params import params_after_join
from sequence_hooks.v1.core.recording import RecordingScheduler
from sequence_hooks.v1.core.requests import begin_session
from sequence_hooks.v1.core.sequence import V1Branch, V1Sequence
from vllm.logger import init_logger
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.request import Request, RequestStatus

# Below upstream's logger, which has the handlers.
logger = init_logger(f"vllm.{__name__}")


class TreeScheduler(RecordingScheduler):
    """Asks the driver what to do about tokens and ends, and carries it out; its `SchedulerPort`."""

    _append_upstream: Callable[..., tuple[list[int], bool]]
    """Upstream's own way to give a request a new token; this scheduler's is `_append_token`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._branches: dict[str, V1Branch] = {}
        """The unfinished requests that a hook has touched, and all unfinished children."""

        self._event_log = EventLog()
        self._children = children = ChildRequests.of(self.vllm_config, self.structured_output_manager)
        special_kwargs = children.special_kwargs
        self.triggers = Triggers.of(special_kwargs, children.tokenizer)
        check_kv_groups(self.kv_cache_config)
        observer = SILENT if special_kwargs.record_to is None else Recorder(special_kwargs.record_to)
        self.driver: ForkJoinDriver[V1Sequence] = ForkJoinDriver(
            special_kwargs,
            children,
            self,
            HookLog(logger, ToldOnce()),
            children.vocab_size,
            (TreeNotes(observer), self._event_log),
        )
        self.trees = self.driver.trees
        self.observe(observer, children.decode)
        self.relieve_by(special_kwargs.blocked_kv_policy, observer)
        if special_kwargs.injects_kv:
            self.share_no_injected_blocks()
            self._shifts_positions = special_kwargs.position_rule == "overlap"

    def branch_of(self, request_id: str) -> V1Branch | None:
        """The branch of an unfinished request; None if no hook has touched it."""
        return self._branches.get(request_id)

    def enqueue_children(self, parent: V1Branch, children: Sequence[V1Branch]) -> None:
        """Queue children with forks of their parent's blocks."""
        for child in children:
            request, name = child.sequence.request, child.request_id
            assert child.spec is not None
            self._branches[name], self.requests[name] = child, request
            self._forks.add(parent.sequence.request, request, child.spec.num_shared)
            self._enqueue_waiting_request(request)
            if self.log_stats:
                request.record_event(EngineCoreEventType.QUEUED)

    def block_sequence(self, branch: V1Branch) -> None:
        """Set a request aside; see `_handle_stopped_request` for what upstream does then."""
        request = branch.sequence.request
        self._block(request)
        if branch.ended_as is not None:
            self._release_kept(request)

    def kv_source(self, child: V1Branch) -> Source:
        """What is kept of a finished child."""
        return self._kept.source(child)

    def allocate_injected(self, branch: V1Branch) -> bool:
        """Allocate slots for the whole context of a BLOCKED request; False if there are not enough."""
        return self._has_slots(branch.sequence.request)

    def enqueue_joined(self, branch: V1Branch) -> None:
        """Let a request go on, for which all that it has so far is its prompt."""
        request, injected = branch.sequence.request, branch.injected
        self._unblock(request)
        begin_session(request, params_after_join(branch))
        request.status = RequestStatus.WAITING
        if injected is not None and injected.copies:
            self._begin_injected(request, injected)
        else:
            self._release_kept(request)
        self._enqueue_waiting_request(request)

    def finish_joined(self, branch: V1Branch) -> None:
        """Finish a BLOCKED request with the end that it had, or with the model's length."""
        request, ended_with = branch.sequence.request, branch.sequence.ended_with
        assert ended_with is not None
        self._unblock(request)
        self._release_kept(request)
        request.status = ended_with
        self._free_request(request)
        if branch.parent is None:
            self._event_log.finish(branch)

    def abort_sequences(self, branches: Sequence[V1Branch]) -> None:
        """Abort requests, in this order."""
        self.finish_requests([branch.request_id for branch in branches], RequestStatus.FINISHED_ABORTED)

    def _append_token(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        """In place of upstream's `_update_request_with_output`."""
        branch = self._branches.get(request.request_id)
        token_id = new_token_ids[-1]
        match = self._match(token_id, request, branch) if token_id in self.triggers.candidates else None
        if branch is None:
            if match is None:
                return self._append_upstream(request, new_token_ids, is_stale)
            branch = self._branches[request.request_id] = self.driver.add_root(self._children.sequence_of(request))
        output = branch.sequence.output_token_ids
        decision = None if match is None else self.driver.decide(branch, token_id, match, output)
        if request.is_finished():
            # Its own handler has aborted it.
            _cache_nothing(request)
            return [], False
        new_token_ids, stopped = self._append_upstream(request, new_token_ids, is_stale)
        if not stopped:
            self._ends_full(request)
        ending = branch.sequence.ending(token_id)
        if ending is not None:
            self.driver.end(branch, ending)
            return new_token_ids, True
        is_blocked = decision is not None and self.driver.apply(branch, decision)
        if request.is_finished():
            # Code of a user's in its children's parameters has aborted it.
            _cache_nothing(request)
        return new_token_ids, is_blocked

    def _match(self, token_id: int, request: Request, branch: V1Branch | None) -> TriggerMatch | None:
        """The hook that a token which comes next in a request's context fires, if any."""
        num_sampled = request.num_output_tokens if branch is None else branch.num_sampled_last
        return self.triggers.match(token_id, request.all_token_ids, num_sampled)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        branch = self._branches.pop(request.request_id, None)
        if branch is not None:
            if branch.phase != "finished":
                self._unblock(request)
                self._forks.release(branch.request_id)
                self._stop_injecting(request)
                self.driver.abort(branch)
            elif self.driver.keeps_kv(branch):
                self._kept.keep(branch)
        freed: tuple[Any, Any] = super()._free_request(request, *args, **kwargs)
        return freed

    def _is_of_a_tree(self, request: Request) -> bool:
        return request.request_id in self._branches or request.request_id in self._glue

    def _injected_of(self, request: Request) -> InjectedKV | None:
        branch = self._branches.get(request.request_id)
        return None if branch is None else branch.injected

    def _starts_over(self, request: Request) -> None:
        if request.request_id in self._branches:
            self._branches[request.request_id].discard_injected()


def _cache_nothing(request: Request) -> None:
    """Let upstream enter no blocks of a request, which was aborted in this step and has none, into its prefix cache."""
    request.num_computed_tokens = 0
