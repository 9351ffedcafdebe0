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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, cast

from sequence_hooks.handlers.triggers import Triggers
from sequence_hooks.kv.eviction import EvictionCandidate
from sequence_hooks.serving.outlines.requests import has_outlines, regexes
from sequence_hooks.tree.driver import ForkJoinDriver
from sequence_hooks.tree.injection import Source
from sequence_hooks.tree.log import HookLog, OncePerRequest
from sequence_hooks.v1.core.admission import TreeAdmission
from sequence_hooks.v1.core.children import ChildRequests
from sequence_hooks.v1.core.event_log import EventLog
from sequence_hooks.v1.core.eviction import KVEvictor
from sequence_hooks.v1.core.forks import ForkedBlocks
from sequence_hooks.v1.core.injection import Injection
from sequence_hooks.v1.core.integrity import check_blocks, check_queues, check_shares, held_blocks
from sequence_hooks.v1.core.kept import KeptKV
from sequence_hooks.v1.core.kv_groups import check_kv_groups, cut_hit, waits_for_state
from sequence_hooks.v1.core.lockstep import OwedStep
from sequence_hooks.v1.core.params import params_after_join
from sequence_hooks.v1.core.recorder import SchedulerRecorder
from sequence_hooks.v1.core.requests import begin_session, discard_in_flight, limit_tokens
from sequence_hooks.v1.core.sequence import V1Branch, V1Sequence, num_written, params_of
from sequence_hooks.v1.core.stats import CoreStats, count_requests
from sequence_hooks.v1.releases.installed import ReleaseScheduler
from sequence_hooks.v1.settings import is_of_server
from sequence_hooks.v1.wire import RESUME, HookSchedulerOutput
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

# Below upstream's logger, which has the handlers.
logger = init_logger(f"vllm.{__name__}")


class HookScheduler(ReleaseScheduler):
    """Moves requests as the driver says: its `sequence_hooks.tree.port.SchedulerPort`. Asynchronous if upstream's is.

    No collaborator holds what upstream reassigns, such as ``running``: it is an argument of their methods.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Where no token is in flight, upstream's scheduler for synchronous engines does the same with less.
        self._upstream = cast(Any, super() if self.scheduler_config.async_scheduling else super(AsyncScheduler, self))
        self._append_upstream: Callable[..., tuple[list[int], bool]] = self._upstream._update_request_with_output
        manager = self.kv_cache_manager
        self._allocate_upstream: Callable[..., KVCacheBlocks | None] = manager.allocate_slots
        self.branches: dict[str, V1Branch] = {}
        """The unfinished requests that a hook has touched, and all unfinished children."""

        self._budgeted: set[str] = set()
        """Unfinished requests without a tree that may not sample all their tokens: ``max_tree_tokens`` are fewer."""

        self.blocked: dict[str, Request] = {}
        """In the order in which they were set aside."""

        self._children = children = ChildRequests.of(self.vllm_config, self.structured_output_manager)
        hooks = children.special_kwargs
        check_kv_groups(self.kv_cache_config, hooks.injects_kv)
        self._recorder = SchedulerRecorder(hooks.record_to, manager, children.decode)
        self._events = EventLog()
        self._forks = ForkedBlocks(manager)
        if self._forks.has_states:
            self._take_upstream_copies = manager.take_kv_cache_block_copies
            manager.take_kv_cache_block_copies = self._take_block_copies  # type: ignore[method-assign]
        self._kept = KeptKV(manager)
        self._injection = Injection(
            manager, self._kept, self.branches, hooks, self.scheduler_config, self.vllm_config.model_config.uses_mrope
        )
        self.evictor = KVEvictor(manager, hooks.blocked_kv_policy, self._recorder)
        self._stats = CoreStats(self.blocked, manager, self.evictor)
        self._owed_step = OwedStep(self.parallel_config.data_parallel_size > 1)
        self.triggers = Triggers.of(hooks, children.tokenizer)
        log, observers = HookLog(logger, OncePerRequest()), (self._recorder, self._events)
        self.driver = ForkJoinDriver[V1Sequence](hooks, children, self, log, children.vocab_size, observers)
        self.trees = self.driver.trees
        self._admission = TreeAdmission(
            self.waiting_with_kv,
            self.waiting,
            self.branches,
            self._injection.glue,
            self._forks.children,
            manager.block_pool,
            self.policy == SchedulingPolicy.PRIORITY,
        )
        if has_outlines(hooks) and is_of_server(self.vllm_config):
            children.compile(regexes(hooks))

    # What the rest of upstream's engine calls.

    def add_request(self, request: Request) -> None:
        """As upstream; a front end's resumption of a sequence is not queued."""
        resumption = (params_of(request).extra_args or {}).get(RESUME)
        if resumption is None:
            self._recorder.arrived(request)
            if limit_tokens(request, self.driver.max_tokens_alone(params_of(request))):
                self._budgeted.add(request.request_id)
            self._admission.order.num_arrived += 1
            super().add_request(request)
            return
        self._owed_step.begin()
        try:
            self.driver.resume(*resumption)
        except ValueError as error:
            # The front end has checked it: the sequence was aborted meanwhile.
            logger.debug("%s", error)

    def has_requests(self) -> bool:
        """As upstream, and while something is to be told. If all wait for a caller, the engine sleeps."""
        return super().has_requests() or bool(self._events) or self.trees.has_unsettled

    def has_unfinished_requests(self) -> bool:
        """As upstream, and while this engine owes others a step."""
        return super().has_unfinished_requests() or bool(self._owed_step)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Upstream's `schedule`, after joining the parents that can go on."""
        self.driver.join_ready()
        # Bound anew in each step: while there is no tree, a request costs no call of ours, as an override would.
        if self.branches:
            self.waiting_with_kv, allocate = self._admission, self._allocate_slots
            self._make_room()
        else:
            self.waiting_with_kv, allocate = self._admission.others, self._allocate_upstream
        self.kv_cache_manager.allocate_slots = allocate  # type: ignore[method-assign]
        is_recording = self._recorder.is_recording
        start = self._recorder.now() if is_recording else 0.0
        # Upstream admits nobody after a request that has to wait.
        skipped = self._injection.after_parts() if self._injection.glue else ()
        if skipped:
            self.waiting_with_kv.remove_requests(skipped)
        scheduled = super().schedule(*args, **kwargs)
        self._owed_step.note_step(scheduled.total_num_scheduled_tokens)
        for request in reversed(skipped):
            # Glue whose owner has given up its KV meanwhile is gone.
            if request.request_id in self.requests:
                self.waiting_with_kv.prepend_request(request)
        if is_recording:
            self._record_step(start, self._injection.by_owner(scheduled))
        step = self._injection.step if self.branches else None
        return scheduled if step is None else HookSchedulerOutput.of(scheduled, step)

    def _allocate_slots(self, request: Request, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
        """Upstream's `allocate_slots`; before it fails, others that do not run give up their KV."""
        if self._injection.must_wait(request, self._inflight_prefills):
            return None
        blocks = self._allocate_upstream(request, *args, **kwargs)
        if blocks is None and waits_for_state(self.kv_cache_manager, kwargs.get("new_computed_blocks")):
            return None
        while blocks is None and self._evict_for(request):
            blocks = self._allocate_upstream(request, *args, **kwargs)
        if blocks is None:
            self._admission.shortage.note()
            victim = None
            if request.status == RequestStatus.RUNNING:
                victim = self._admission.better_victim(self.running, request)
            if victim is not None:
                # Upstream preempts the last one.
                self.running.remove(victim)
                self.running.append(victim)
        return blocks

    def _take_block_copies(self) -> tuple[list[Any], list[Any]]:
        """Upstream's `take_kv_cache_block_copies`, with those of states that are overwritten in this step."""
        self._forks.keep_states()
        return self._take_upstream_copies()

    def _get_local_prefix_cache_hit(self, request: Request, *args: Any) -> tuple[KVCacheBlocks, int, int, bool]:
        fork = self._forks.of(request)
        if fork is not None:
            return *fork, 0, False
        found = super()._get_local_prefix_cache_hit(request, *args)
        branch = self.branches.get(request.request_id)
        if branch is None:
            return found
        # It begins with what the prefix cache has, and computes the rest from its tokens, at the positions they had.
        branch.discard_injected()
        return cut_hit(self.kv_cache_manager, found, branch.positions.num_plain, self.block_size)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        if not self.branches:
            self._upstream._update_after_schedule(scheduler_output)
            return
        self._injection.send(scheduler_output, self.requests)
        self._forks.release_admitted(scheduler_output.num_scheduled_tokens.keys())
        self._upstream._update_after_schedule(scheduler_output)
        self._remove(self._injection.take_computed_glue(scheduler_output))

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Upstream's outputs, and what happened to trees meanwhile."""
        self._events.begin_step()
        sampled = chain.from_iterable(model_runner_output.sampled_token_ids)
        is_ours = bool(self.branches or self._budgeted) or any(map(self.triggers.candidates.__contains__, sampled))
        # Bound anew in each step: upstream calls it for each request, and in most steps nobody is in a tree.
        append = self._append_token if is_ours else self._append_upstream
        self._update_request_with_output = append  # type: ignore[method-assign]
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.driver.join_ready()
        if self._recorder.is_recording and not self.has_unfinished_requests():
            # No other step may follow until a caller or a request comes.
            self._record_step(self._recorder.now(), {})
        self._events.write(outputs, self._stats.changed(len(self.running)) if self.log_stats else None)
        return outputs

    def _append_token(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        """In place of upstream's `_update_request_with_output`."""
        branch, token_id = self.branches.get(request.request_id), new_token_ids[-1]
        match = None
        if token_id in self.triggers.candidates:
            num_sampled = request.num_output_tokens if branch is None else branch.num_sampled_last
            match = self.triggers.match(token_id, request.all_token_ids, num_sampled)
        if branch is None:
            if match is not None and not self.driver.has_hooks(params_of(request)):
                match = None
            uses_up = request.request_id in self._budgeted and request.num_output_tokens + 1 >= request.max_tokens
            if match is None and not uses_up:
                return self._append_upstream(request, new_token_ids, is_stale)
            branch = self._begin_tree(request)
        sequence = branch.sequence
        decision = None if match is None else self.driver.decide(branch, token_id, match, sequence.output_in_context)
        if request.is_finished():
            # Its own handler has aborted it.
            return [], False
        new_token_ids, _ = self._append_upstream(request, new_token_ids, is_stale)
        is_full = request.num_tokens + branch.positions.lead >= self.max_model_len or branch.has_sampled_all(
            self.max_model_len
        )
        has_room = branch.count_sampled() and not is_full
        ending = sequence.ending(token_id, has_room)
        if ending is not None:
            self.driver.end(branch, ending)
            return new_token_ids, True
        return new_token_ids, decision is not None and self.driver.apply(branch, decision)

    def _begin_tree(self, request: Request) -> V1Branch:
        self._budgeted.discard(request.request_id)
        branch = self.branches[request.request_id] = self.driver.add_root(self._children.sequence_of(request))
        self.waiting_with_kv = self._admission
        self._admission.begin_tree(branch, request)
        return branch

    def _handle_stopped_request(self, request: Request) -> bool:
        if request.request_id not in self.blocked or request.is_finished():
            # A BLOCKED one is finished if its grammar does not accept the token that has blocked it.
            return super()._handle_stopped_request(request)
        if not self._forks.has_states:
            # What a step in flight computes is computed again. A state has it already, and is not to have it twice.
            request.num_computed_tokens = num_written(request)
        discard_in_flight(request)
        self.reset_preempted_req_ids.add(request.request_id)
        return False

    def _enqueue_waiting_request(self, request: Request) -> None:
        # Some releases enqueue what has stopped and goes on at the end of a step, when it may have been aborted.
        if request.request_id not in self.blocked and not request.is_finished():
            self._recorder.track(request)
            super()._enqueue_waiting_request(request)

    def _holds_kv_blocks(self, request: Request) -> bool:  # type: ignore[override]
        # Trees wait in our queue, which is in the place of upstream's for requests that hold KV.
        return self._is_of_a_tree(request) or super()._holds_kv_blocks(request)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        glue = self._injection.glue.get(request.request_id)
        if glue is not None:
            # Without it, its owner cannot go on with injected KV.
            self._evict(self.evictor.candidate(glue.owner))
            return
        self._recorder.preempted(request.request_id, "discard", request.num_computed_tokens)
        super()._preempt_request(request, *args, **kwargs)
        if request.request_id in self.branches:
            self._admission.take_from_new(request)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        branch = self.branches.pop(request.request_id, None)
        self._budgeted.discard(request.request_id)
        if branch is not None:
            self.blocked.pop(request.request_id, None)
            self._admission.leave(request)
            self._forks.release(request.request_id)
            self._remove(self._injection.stop(request))
            self._kept.release_children(request)
            if branch.phase != "finished":
                self.driver.abort(branch)
            if self.driver.keeps_kv(branch):
                self._kept.keep(branch)
            if branch.parent is None:
                self._admission.order.end(branch)
        self._recorder.ended(request)
        freed = super()._free_request(request, *args, **kwargs)
        if branch is not None and branch.ended_as in ("failed", "cancelled"):
            # User-defined code may have aborted it while its token is processed: upstream is to cache no block for it.
            request.num_computed_tokens = 0
        return freed

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """Abort requests or single branches, with all their descendants, whatever their status."""
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
        """As upstream: if running requests give up their KV, so do those that do not run."""
        if reset_running_requests:
            kept = self._kept.candidates(self._injection.copies)
            waiting = self._injection.without_glue(self.waiting_with_kv)
            for candidate in [*kept, *self.evictor.candidates([*self.blocked.values(), *waiting])]:
                self._evict(candidate)
            self._forks.release_all()
        return super().reset_prefix_cache(reset_running_requests, *args, **kwargs)

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        """Upstream's, in which a tree counts as one request."""
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
            self._forks.add(parent.sequence.request, request, child.spec.num_shared)
            self._enqueue_waiting_request(request)
            if self.log_stats:
                request.record_event(EngineCoreEventType.QUEUED)

    def block_sequence(self, branch: V1Branch) -> None:
        """Set a request aside; upstream then asks `_handle_stopped_request` what becomes of it."""
        request = branch.sequence.request
        if branch.has_used_up and not request.is_finished() and request.request_id not in self.blocked:
            self._leave_queue(request)
        request.status = RequestStatus.PREEMPTED
        self._admission.leave(request)
        self.blocked[request.request_id] = request
        if branch.ended_as is not None:
            self._kept.release_settled(request)

    def kv_source(self, child: V1Branch) -> Source:
        """What is kept of a finished child."""
        return self._kept.source(child)

    def cut_kv(self, branch: V1Branch, num_kept: int) -> int:
        """Let a BLOCKED request share the first blocks with itself, as a child does with its parent.

        It is admitted as one: upstream copies the last block, which others may share, or find in the prefix cache.
        """
        request = branch.sequence.request
        num_computed = self._forks.add(request, request, num_kept)
        # Upstream's, which waits until no step in flight writes to the blocks.
        self._free_request_blocks(request)
        request.num_computed_tokens = 0
        return num_computed

    def allocate_injected(self, branch: V1Branch) -> bool:
        """Allocate slots for the whole context of a BLOCKED request; False if there are not enough."""
        request = branch.sequence.request
        self._injection.reserve(request)
        has_slots = self._allocate_slots(request, request.num_tokens - request.num_computed_tokens) is not None
        if not has_slots:
            self._injection.cancel(request)
        return has_slots

    def enqueue_joined(self, branch: V1Branch) -> None:
        """Let a request go on, for which all that it has so far is its prompt."""
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
        """Finish a BLOCKED request with the end that it had, or that its join is."""
        request, ended_with = branch.sequence.request, branch.sequence.ended_with
        assert ended_with is not None
        request.status = ended_with
        self._free_request(request)
        if branch.parent is None:
            self._events.finish(branch)

    def abort_sequences(self, branches: Sequence[V1Branch]) -> None:
        """Abort requests, in this order."""
        self.finish_requests([branch.request_id for branch in branches], RequestStatus.FINISHED_ABORTED)

    def cancel_sequences(self, branches: Sequence[V1Branch]) -> None:
        """Abort requests, in this order: what a step in flight samples for them is dropped."""
        self.abort_sequences(branches)

    # Who gives up its row or its KV, and what is out of upstream's queues.

    def _make_room(self) -> None:
        """Preempt children of the trees that have most of the rows, for those that have waited and have none."""
        is_paused, num_rows = self.pause_state != PauseState.UNPAUSED, self.max_num_running_reqs
        num_others = len(self.requests) - len(self.branches) - len(self._injection.glue)
        num_free = num_rows - len(self.running)
        for victim in self._admission.begin_step(is_paused, num_rows, num_free, num_others, len(self.deferred)):
            self.running.remove(victim)
            self._preempt_request(victim, time.monotonic())
            # If it goes on in this very step, the worker is to learn its tokens anew.
            self.prev_step_scheduled_req_ids.discard(victim.request_id)

    def _evict_for(self, request: Request) -> bool:
        """Let one holder give up KV that a request needs; False if none has any that it has to give up."""
        # One that runs alone would be preempted for itself, and come as far again.
        is_last_resort = all(each is request for each in self.running)
        # New requests wait for long before they take KV that others would recompute.
        is_of_a_tree, is_running = self._is_of_a_tree(request), request.status == RequestStatus.RUNNING
        may_evict = is_running or is_of_a_tree or self._admission.shortage.is_too_long
        if not is_last_resort and (self.evictor.preserves or not may_evict):
            return False
        # Children which have yet to begin keep BLOCKED sequences from giving up what they share.
        is_for_others = not is_of_a_tree or (is_running and not all(map(self._is_of_a_tree, self.running)))
        takes_all = is_last_resort or is_for_others
        kept = self._kept.candidates(self._injection.copies)
        waiting = self._injection.without_glue(self.waiting_with_kv) if takes_all else ()
        victim = self.evictor.choose(request, self.blocked.values(), kept, waiting)
        if victim is None:
            return takes_all and self._forks.release_one_for(request.request_id)
        self._evict(victim)
        return True

    def _evict(self, candidate: EvictionCandidate[Request]) -> None:
        """Let a request that does not run, or what is kept of a finished one, give up its KV."""
        self.evictor.note(candidate)
        request = candidate.holder
        if not self._kept.release(request.request_id):
            self._remove(self._injection.stop(request))
            self._kept.release_lost(request)
            # Upstream's, which waits until no step in flight writes to the blocks.
            self._free_request_blocks(request)
            request.num_computed_tokens = 0

    def _is_of_a_tree(self, request: Request) -> bool:
        """Whether a hook has touched a request, or it is a child, or glue of one of these."""
        return request.request_id in self.branches or request.request_id in self._injection.glue

    def _leave_queue(self, request: Request) -> None:
        """Take a request out of all queues, wherever it is. It finishes before the next step, as if it was aborted:
        upstream drops what a step in flight samples for it.
        """
        if request.status == RequestStatus.RUNNING:
            self.running.remove(request)
        self._inflight_prefills.discard(request)
        self.deferred.discard(request)
        for queue in (self.waiting_with_kv, self.waiting):
            with suppress(ValueError):
                queue.remove_request(request)

    def _remove(self, glue: Sequence[Request]) -> None:
        """Take glue out of all queues, each of which is gone through once."""
        running = {each for each in glue if each.status == RequestStatus.RUNNING}
        if running:
            self.running = [each for each in self.running if each not in running]
            self.finished_req_ids.update(each.request_id for each in running)
        if len(running) < len(glue):
            self.waiting_with_kv.remove_requests([each for each in glue if each not in running])
        self._inflight_prefills.difference_update(glue)
        for each in glue:
            del self.requests[each.request_id]

    def _record_step(self, start: float, scheduled: Mapping[str, int]) -> None:
        glue = self._injection.glue
        held = held_blocks(self.kv_cache_manager, self._forks, self._kept, glue)
        _, num_waiting = self.get_request_counts()
        self._recorder.step(start, scheduled, self.requests, held, len(self.blocked), num_waiting - len(glue))

    def check_integrity(self) -> None:
        """Raise an `IntegrityError` that lists all the counts, unless trees, queues and blocks add up."""
        self.trees.check_integrity()
        check_queues(self, self.blocked, self.trees)
        check_shares(self._admission.order, self.running, self.branches)
        manager = self.kv_cache_manager
        check_blocks(manager, held_blocks(manager, self._forks, self._kept, self._injection.glue))
