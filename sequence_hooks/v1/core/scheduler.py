# SPDX-License-Identifier: Apache-2.0
"""Upstream's scheduler, in which requests spawn, wait for and join others.

    spawn              WAITING ──► RUNNING
    promise, sync      RUNNING ──► BLOCKED      its row in the worker's batch is freed
    its own end        RUNNING ──► BLOCKED      with children still unjoined
    children finished  BLOCKED ──► WAITING      KV kept: computes what is new; KV evicted: finds or recomputes it
                               ──► FINISHED_*   it had ended, or has no room left

A BLOCKED request is in none of upstream's queues, so it counts against no limit of theirs, and it keeps its blocks
unless others need them. BLOCKED is ours: upstream's status of such a request is PREEMPTED, which has no finish reason.

Sequences of trees wait in a queue of their own, which is fair among requests: see `sequence_hooks.admission`.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from sequence_hooks.handlers.triggers import Triggers
from sequence_hooks.serving.outlines.requests import has_outlines, regexes
from sequence_hooks.tree import rules
from sequence_hooks.tree.driver import ForkJoinDriver, Sampled
from sequence_hooks.tree.injection_plan import Source
from sequence_hooks.tree.log import HookLog, OncePerRequest
from sequence_hooks.v1.core import runs
from sequence_hooks.v1.core.children import ChildRequests
from sequence_hooks.v1.core.connector import TreeConnector
from sequence_hooks.v1.core.flat_log import event_log_of
from sequence_hooks.v1.core.integrity import check_blocks, check_queues, check_shares, held_blocks
from sequence_hooks.v1.core.kv_groups import check_kv_groups
from sequence_hooks.v1.core.kv_manager import TreeKVManager
from sequence_hooks.v1.core.lockstep import PendingDummyStep
from sequence_hooks.v1.core.params import params_after_join
from sequence_hooks.v1.core.paused import PausedScheduler
from sequence_hooks.v1.core.queues import held_back, leave_queues, remove_glue
from sequence_hooks.v1.core.recorder import SchedulerRecorder
from sequence_hooks.v1.core.requests import begin_session, discard_in_flight, limit_tokens, make_private
from sequence_hooks.v1.core.resumptions import Resumptions
from sequence_hooks.v1.core.sequence import V1Branch, V1Sequence, num_written, params_of
from sequence_hooks.v1.core.stats import CoreStats, count_requests
from sequence_hooks.v1.settings import has_private_caching, is_of_server
from sequence_hooks.v1.wire import RESUME, HookSchedulerOutput
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

# Below upstream's logger, which has the handlers.
logger = init_logger(f"vllm.{__name__}")


class HookScheduler(PausedScheduler):
    """Moves requests as the driver says: its `sequence_hooks.tree.port.SchedulerPort`.

    No collaborator keeps a reference to what upstream reassigns, such as ``running``: each asks for it every time.
    """

    def __new__(cls, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> "HookScheduler":
        """Asynchronous if upstream's would be."""
        return super().__new__(AsyncHookScheduler if vllm_config.scheduler_config.async_scheduling else HookScheduler)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.branches: dict[str, V1Branch] = {}
        """The unfinished requests that a hook has touched, and all unfinished children."""

        self.blocked: dict[str, Request] = {}
        """In the order in which they were set aside."""

        self._children = children = ChildRequests.of(self.vllm_config, self.structured_output_manager)
        hooks = children.special_kwargs
        check_kv_groups(self.kv_cache_config, hooks.injects_kv)
        self._recorder = SchedulerRecorder(hooks.record_to, self.kv_cache_manager, children.decode)
        self._events = event_log_of(self.vllm_config, hooks)
        self.kv = TreeKVManager.adopt(self)
        self.kv.attach(self, hooks, self._recorder, self.branches, self.blocked)
        self._injection, self._kept = self.kv.injection, self.kv.kept
        self.waiting_with_kv = self._admission = self.kv.admission
        self.evictor = self.kv.evictor
        self._connector = TreeConnector.of(self, self._injection, self.kv.forks)
        self._is_caching_private = has_private_caching(self.vllm_config)
        is_async = self.scheduler_config.async_scheduling
        self._samples_padding = current_platform.is_cpu() and not is_async
        """Whether upstream's sampler may accept a draft that is none, as its kernel for CPUs does: trees have thousands
        of requests that wait for one token."""

        self._stats = CoreStats(self.blocked, self.kv, self.evictor)
        self._pending_step = PendingDummyStep(self.parallel_config.data_parallel_size > 1)
        log, observers = HookLog(logger, OncePerRequest()), (self._recorder, self._events)
        triggers = Triggers.of(hooks, children.tokenizer)
        self.driver = ForkJoinDriver[V1Sequence](hooks, triggers, children, self, log, children.vocab_size, observers)
        self.trees = self.driver.trees
        self._resumptions = Resumptions(self.driver, self._pending_step, logger)
        if has_outlines(hooks) and is_of_server(self.vllm_config):
            children.compile(regexes(hooks))

    # What the rest of upstream's engine calls.

    def add_request(self, request: Request) -> None:
        """As upstream; a front end's resumption of a sequence is not queued."""
        if self._events.checks_requests and not self._events.admits(request):
            return
        resumption = (params_of(request).extra_args or {}).get(RESUME)
        if resumption is None:
            self._recorder.arrived(request)
            limit_tokens(request, self.driver.max_tokens_without_tree(params_of(request)))
            self._admission.order.num_arrived += 1
            if self._is_caching_private:
                make_private(request, self._admission.order.num_arrived)
            super().add_request(request)
            return
        self._resumptions.append(*resumption)
        self._resumptions.carry_out(self.pause_state)

    def set_pause_state(self, pause_state: PauseState) -> None:
        """As upstream; sequences that were resumed during a pause go on after it."""
        super().set_pause_state(pause_state)
        self._resumptions.carry_out(pause_state)

    def has_requests(self) -> bool:
        """As upstream, and while there are events to send. If all sequences wait for a caller, the engine sleeps."""
        return super().has_requests() or bool(self._events) or self.trees.has_unsettled

    def has_unfinished_requests(self) -> bool:
        """As upstream, and while this engine owes others a step."""
        return super().has_unfinished_requests() or bool(self._pending_step)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Upstream's `schedule`, after joining the parents that can resume."""
        self.driver.join_ready()
        if self.branches:
            self._make_room()
        start = self._recorder.now()
        with held_back(self, self._injection.after_parts()):
            scheduled = super().schedule(*args, **kwargs)
        self._pending_step.note_step(scheduled.total_num_scheduled_tokens)
        if self._recorder.is_recording:
            self._record_step(start, self._injection.by_owner(scheduled), scheduled.scheduled_spec_decode_tokens)
        step = self._injection.step if self.branches else None
        return scheduled if step is None else HookSchedulerOutput.of(scheduled, step)

    def _get_local_prefix_cache_hit(self, request: Request, *args: Any) -> tuple[KVCacheBlocks, int, int, bool]:
        fork = self.kv.forks.of(request)
        if fork is not None:
            return *fork, 0, False
        branch = self.branches.get(request.request_id)
        if branch is not None:
            # It computes its context from its tokens, at the positions that they had.
            self.trees.discard_injected(branch)
        return self.kv.cut_hit(request, super()._get_local_prefix_cache_hit(request, *args))

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        if self._samples_padding and scheduler_output.scheduled_spec_decode_tokens:
            runs.remove_padding(scheduler_output, runs.padded(scheduler_output))
        if self.branches:
            # Rows of drafts would be written where its owner has injected KV.
            runs.remove_padding(scheduler_output, self._injection.glue)
            self.kv.send(scheduler_output, self.requests)
        super()._update_after_schedule(scheduler_output)
        if self.branches:
            remove_glue(self, self._injection.take_computed_glue(scheduler_output))

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Upstream's outputs, and what happened to trees meanwhile."""
        self._events.begin_step()
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.driver.join_ready()
        if self._recorder.is_recording and not self.has_unfinished_requests():
            # No other step may follow until a caller or a request comes.
            self._record_step(self._recorder.now(), {}, {})
        self._events.write(outputs, self._stats.changed(len(self.running)) if self.log_stats else None)
        return outputs

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        """As upstream, and what the hooks of sampled tokens ask for."""
        *earlier, token_id = new_token_ids
        branch, decision = self.branches.get(request.request_id), None
        if earlier and (branch is not None or self._may_meet_a_hook(request, new_token_ids)):
            taken, has_stopped = runs.take(request, new_token_ids, is_stale, self._update_request_with_output)
            self._note_run(request, len(earlier), taken)
            return taken, has_stopped
        if branch is not None and rules.is_dropped(branch):
            return runs.drop(request)
        is_last = branch is None and request.num_output_tokens + 1 >= request.max_tokens
        if is_last or token_id in self.driver.triggers.candidates:
            num_prompt = request.num_prompt_tokens if branch is None else branch.sequence.num_prompt_tokens
            token = Sampled(token_id, request.all_token_ids, num_prompt, params_of(request))
            decision = self.driver.sampled(branch, token, partial(self._begin_tree, request))
            if request.is_finished():
                # Its own handler has aborted it.
                return [], False
            branch = self.branches.get(request.request_id)
        new_token_ids, has_stopped = super()._update_request_with_output(request, new_token_ids, is_stale)
        if branch is None:
            if earlier:
                self._note_run(request, len(earlier), new_token_ids)
            return new_token_ids, has_stopped
        branch.count_sampled()
        has_room = rules.has_room(branch, request.num_tokens, self.max_model_len)
        stop_tokens = branch.sequence.stop_tokens_after(token_id, has_room)
        if stop_tokens is not None:
            self.driver.end(branch, stop_tokens)
            return new_token_ids, True
        return new_token_ids, decision is not None and self.driver.apply(branch, decision)

    def _note_run(self, request: Request, num_accepted: int, taken: Sequence[int]) -> None:
        # The last token of a run is no draft.
        num_taken_back = max(0, num_accepted - len(taken))
        self._stats.num_taken_back += num_taken_back
        self._recorder.sampled(request.request_id, num_accepted, num_taken_back)

    def _may_meet_a_hook(self, request: Request, new_token_ids: Sequence[int]) -> bool:
        """Whether one of several tokens of a request without a tree has a hook, or may be the last one."""
        may_be_last = request.num_output_tokens + len(new_token_ids) >= request.max_tokens
        return may_be_last or not self.driver.triggers.candidates.isdisjoint(new_token_ids)

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """As upstream, without the drafts of requests that were set aside or preempted meanwhile."""
        super().update_draft_token_ids(runs.drafts_of_running(draft_token_ids, self.requests))

    def _begin_tree(self, request: Request) -> V1Branch | None:
        sequence = self._children.sequence_of(request)
        if sequence.stop is not None:
            # Its front end leaves out what follows its stop string, and aborts it.
            return None
        branch = self.branches[request.request_id] = self.driver.add_root(sequence)
        self._admission.begin_tree(branch, request)
        self._tell_of_older_kv(branch)
        return branch

    def _handle_stopped_request(self, request: Request) -> bool:
        if request.request_id not in self.blocked or request.is_finished():
            # A BLOCKED one is finished if its grammar does not accept the token that has blocked it.
            return super()._handle_stopped_request(request)
        if self.kv.forks.has_states_of_drafts:
            # It goes on from the last state that the prefix cache has. Upstream's method waits for steps in flight.
            self._free_request_blocks(request)
            request.num_computed_tokens = 0
        elif not self.kv.forks.has_states:
            # Tokens of a step in flight are computed again. A state has them already, and must not get them twice.
            request.num_computed_tokens = num_written(request)
        discard_in_flight(request)
        self.reset_preempted_req_ids.add(request.request_id)
        return False

    def _enqueue_waiting_request(self, request: Request) -> None:
        # Some releases enqueue a stopped request that continues at the end of a step, when it may have been aborted.
        if request.request_id not in self.blocked and not request.is_finished():
            self._recorder.track(request)
            super()._enqueue_waiting_request(request)

    def _holds_kv_blocks(self, request: Request) -> bool:  # type: ignore[override]
        # Sequences of trees wait in our queue, which replaces upstream's queue for requests that hold KV.
        return self.kv.is_of_a_tree(request) or super()._holds_kv_blocks(request)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        glue = self._injection.glue.get(request.request_id)
        if glue is not None:
            # Without it, its owner cannot continue with injected KV.
            self.kv.evict(self.evictor.candidate(glue.owner))
            return
        self._recorder.preempted(request.request_id, "discard", request.num_computed_tokens)
        super()._preempt_request(request, *args, **kwargs)
        if request.request_id in self.branches:
            self._admission.take_from_new(request)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        branch = self.branches.pop(request.request_id, None)
        if branch is not None:
            self.blocked.pop(request.request_id, None)
            self._admission.leave(request)
            self.kv.stop(request)
            if branch.phase != "finished":
                self.driver.abort(branch)
            if self.driver.keeps_kv(branch):
                self._kept.keep(branch)
            if branch.parent is None:
                self._admission.order.end(branch)
        self._recorder.ended(request)
        freed = super()._free_request(request, *args, **kwargs)
        if branch is not None and branch.outcome in ("failed", "cancelled"):
            # User-defined code may have aborted it while its token is processed: upstream must cache no block for it.
            request.num_computed_tokens = 0
        return freed

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """Abort requests or single branches, with all their descendants, in any status."""
        given = self.requests if request_ids is None else [request_ids] if isinstance(request_ids, str) else request_ids
        # Glue ends with its owner.
        ids = [name for name in given if name not in self._injection.glue]
        below = self.driver.unfinished_below(self.branches[name] for name in ids if name in self.branches)
        # Children first: a parent that is aborted then has none left to abort.
        names = dict.fromkeys([*(branch.request_id for branch in below), *ids])
        finished: list[Request] = []
        for each in names if below else [ids]:
            finished += super().finish_requests(each, finished_status)
        return finished

    def reset_prefix_cache(self, reset_running_requests: bool = False, *args: Any, **kwargs: Any) -> bool:
        """As upstream; if running requests give up their KV, all others do, too."""
        if reset_running_requests:
            self.kv.evict_all()
        return super().reset_prefix_cache(reset_running_requests, *args, **kwargs)

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        """Upstream's statistics, in which a tree counts as one request."""
        stats = super().make_stats(*args, **kwargs)
        if stats is not None and self.branches:
            count_requests(stats, self, self.branches, self.blocked, self._injection.glue.values())
        return stats

    # What the driver calls.

    def enqueue_children(self, parent: V1Branch, children: Sequence[V1Branch]) -> None:
        """Queue children with forks of their parent's blocks."""
        for child in children:
            request, name = child.sequence.request, child.request_id
            assert child.spec is not None
            self.branches[name], self.requests[name] = child, request
            self.kv.forks.add(parent.sequence.request, request, child.spec.num_shared)
            self._enqueue_waiting_request(request)
            self._tell_of_older_kv(child)
            if self._connector is not None:
                self._connector.begin(request)
            if self.log_stats:
                request.record_event(EngineCoreEventType.QUEUED)

    def block_sequence(self, branch: V1Branch) -> None:
        """Set a request aside; upstream then asks `_handle_stopped_request` what becomes of it."""
        request = branch.sequence.request
        if branch.tree.has_used_up and not request.is_finished() and request.request_id not in self.blocked:
            leave_queues(self, request)
        if request.status != RequestStatus.WAITING_FOR_REMOTE_KVS:
            request.status = RequestStatus.PREEMPTED
        self._admission.leave(request)
        self.blocked[request.request_id] = request
        if self._connector is not None:
            self._connector.set_aside(request)
        if branch.outcome is not None:
            self._kept.release_settled(request)

    def kv_source(self, child: V1Branch) -> Source:
        return self._kept.source(child)

    def cut_kv(self, branch: V1Branch, num_kept: int) -> int:
        """Let a BLOCKED request share the first blocks with itself, as a child does with its parent.

        It is admitted like one: upstream copies the last block, which others may share, or find in the prefix cache.
        """
        request = branch.sequence.request
        if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            # It only waits to finish.
            return num_kept
        num_computed = self.kv.forks.add(request, request, num_kept)
        # Upstream's method, which waits until no step in flight writes to the blocks.
        self._free_request_blocks(request)
        request.num_computed_tokens = 0
        return num_computed

    def allocate_injected(self, branch: V1Branch) -> bool:
        """Allocate slots for the whole context of a BLOCKED request; False if there are not enough."""
        request = branch.sequence.request
        self._injection.reserve(request)
        has_slots = self.kv.allocate_slots(request, request.num_tokens - request.num_computed_tokens) is not None
        if not has_slots:
            self._injection.cancel(request)
        return has_slots

    def enqueue_joined(self, branch: V1Branch) -> None:
        """Queue a request that resumes; everything that it has so far becomes its prompt."""
        request, injected = branch.sequence.request, branch.injected
        del self.blocked[request.request_id]
        begin_session(request, params_after_join(branch))
        request.status = RequestStatus.WAITING
        self._admission.prepend_request(request)
        if injected is not None and injected.copies:
            for glue in reversed(self._injection.begin(branch, injected)):
                self.requests[glue.request_id] = glue
                self._admission.prepend_request(glue)
        else:
            self._kept.release_settled(request)

    def finish_joined(self, branch: V1Branch) -> None:
        """Finish a BLOCKED request as it had ended before, or as its join ends it."""
        request, final_status = branch.sequence.request, branch.sequence.final_status
        assert final_status is not None
        if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            # Upstream's method, which keeps the blocks until a connector has written to them.
            super().finish_requests(request.request_id, final_status)
        else:
            request.status = final_status
            self._free_request(request)
        if branch.parent is None:
            self._events.finish(branch)

    def abort_sequences(self, branches: Sequence[V1Branch]) -> None:
        self.finish_requests([branch.request_id for branch in branches], RequestStatus.FINISHED_ABORTED)

    def cancel_sequences(self, branches: Sequence[V1Branch]) -> None:
        """Abort requests, in this order: tokens that a step in flight samples for them are dropped."""
        self.abort_sequences(branches)

    def _make_room(self) -> None:
        """Preempt children of the trees with the most rows, for requests and trees that have waited and have none."""
        is_paused, num_rows = self.pause_state != PauseState.UNPAUSED, self.max_num_running_reqs
        num_others = self.num_unfinished - len(self.branches) - len(self._injection.glue)
        num_free = num_rows - len(self.running)
        for victim in self._admission.begin_step(is_paused, num_rows, num_free, num_others, len(self.deferred)):
            self.running.remove(victim)
            self._preempt_request(victim, time.monotonic())
            # If it resumes in this very step, the worker has to be sent its tokens again.
            self.prev_step_scheduled_req_ids.discard(victim.request_id)

    def _record_step(self, start: float, scheduled: Mapping[str, int], drafts: Mapping[str, Sequence[int]]) -> None:
        held, glue = held_blocks(self.kv), self._injection.glue
        _, num_waiting = self.get_request_counts()
        self._recorder.step(start, scheduled, drafts, self.requests, held, len(self.blocked), num_waiting - len(glue))

    def check_integrity(self) -> None:
        """Raise an `IntegrityError` that lists all the counts, unless trees, queues and blocks add up."""
        self.trees.check_integrity()
        check_queues(self, self.blocked, self.trees)
        check_shares(self._admission.order, self.running, self.branches)
        check_blocks(self.kv, held_blocks(self.kv))


class AsyncHookScheduler(HookScheduler, AsyncScheduler):
    """A `HookScheduler` that schedules a step before the one before it has its tokens."""
