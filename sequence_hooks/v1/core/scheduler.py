# SPDX-License-Identifier: Apache-2.0
"""The scheduler of a V1 engine with sequence hooks: upstream's, which also moves requests as the rules and trees say.

    spawn              WAITING ──► RUNNING
    promise, sync      RUNNING ──► BLOCKED      its row in the worker's batch is freed
    its own end        RUNNING ──► BLOCKED      with children still unjoined
    children finished  BLOCKED ──► WAITING      KV kept: prefills what is new; KV given up: finds or recomputes it
                               ──► FINISHED_*   it had ended, or has no room left

How a request is BLOCKED, and whose KV is given up meanwhile, is the business of `BlockingScheduler`.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from sequence_hooks.integrity import IntegrityError
from sequence_hooks.resuming import nobody_waits
from sequence_hooks.rules import ready
from sequence_hooks.trace.observer import SILENT
from sequence_hooks.trace.recorder import Recorder
from sequence_hooks.tree import DependencyManager
from sequence_hooks.v1.core.decider import Decided
from sequence_hooks.v1.core.figures import FigureCounter
from sequence_hooks.v1.core.forks import check_kv_groups
from sequence_hooks.v1.core.hooks import Hooks, ending_of
from sequence_hooks.v1.core.integrity import check_blocks, check_queues_of
from sequence_hooks.v1.core.ledger import Ledger, ended, joined, spawned
from sequence_hooks.v1.core.params import params_after_join
from sequence_hooks.v1.core.recording import RecordingScheduler
from sequence_hooks.v1.core.requests import begin_session
from sequence_hooks.v1.core.sequence import V1Branch, V1Sequence, params_of
from sequence_hooks.v1.core.stats import count_requests
from sequence_hooks.v1.events import RESUME, Aborted, Blocked
from vllm.logger import init_logger
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

# Below upstream's logger, which has the handlers.
logger = init_logger(f"vllm.{__name__}")


class HookScheduler(RecordingScheduler):
    """Upstream's scheduler with BLOCKED parents and children. It stays asynchronous where upstream's is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_kv_groups(self.kv_cache_config)
        self._branches: dict[str, V1Branch] = {}
        """The unfinished requests that a hook has touched, and all unfinished children."""

        self._ledger = Ledger()
        self._append: Callable[..., tuple[list[int], bool]] = self._upstream._update_request_with_output
        """Upstream's own; what this scheduler does to a request with a new token is `_sample`."""

        self.attach(Hooks.of(self.vllm_config, self.structured_output_manager))
        special_kwargs = self.hooks.special_kwargs
        observer = SILENT if special_kwargs.record_to is None else Recorder(special_kwargs.record_to)
        self.trees: DependencyManager[V1Sequence] = DependencyManager(observer)
        self.observe(observer, lambda *tokens: self.hooks.decode(*tokens))
        self.relieve_by(special_kwargs.blocked_kv_policy, observer)
        self._figures = FigureCounter(self._blocked, self.kv_cache_manager, self.pressure, self.has_unfinished_requests)

    def attach(self, hooks: Hooks) -> None:
        """Use ``hooks``; must be called before the first request."""
        self.hooks = hooks
        self._handlers = hooks.decider.handlers

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Upstream's `schedule`, after joining the parents that can go on."""
        self._settle()
        if self._branches:
            self.pressure.begin()
        else:
            self.pressure.step_aside()
        return super().schedule(*args, **kwargs)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Upstream's outputs, and what happened to trees meanwhile."""
        self._ledger.begin_step()
        sampled = chain.from_iterable(model_runner_output.sampled_token_ids)
        is_ours = bool(self._branches) or any(map(self._handlers.__contains__, sampled))
        # Upstream calls it for each request. In most steps nobody is in a tree, and nothing of ours is called.
        self._update_request_with_output = self._sample if is_ours else self._append  # type: ignore[method-assign]
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._settle()
        self.note_if_idle()
        figures = self._figures.news() if self.log_stats else None
        if self._ledger or figures is not None:
            self._ledger.write(outputs, figures)
        return outputs

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        """Upstream's, in which a tree counts as one request."""
        stats: SchedulerStats | None = super().make_stats(*args, **kwargs)
        if stats is not None and self._branches:
            waiting = chain(self.waiting, self.waiting_first)
            count_requests(stats, self._branches, self.running, waiting, self.deferred)
        return stats

    def add_request(self, request: Request) -> None:
        """As upstream; a front end's resumption of a sequence is not queued."""
        resumption = (params_of(request).extra_args or {}).get(RESUME)
        if resumption is None:
            super().add_request(request)
            return
        name, token_ids = resumption
        try:
            self.resume(name, token_ids)
        except ValueError as error:
            # The front end has checked it: the sequence was aborted meanwhile.
            logger.debug("%s", error)

    def has_requests(self) -> bool:
        """As upstream, and while something is to be told. If all wait for a caller, the engine sleeps."""
        return super().has_requests() or bool(self._ledger) or self.trees.has_unsettled

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """Abort requests or single branches, with all their descendants, whatever their status."""
        if request_ids is None:
            ids = list(self.requests)
        else:
            ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        doomed = [self._branches[name] for name in ids if name in self._branches]
        if not doomed:
            untouched: list[Request] = super().finish_requests(ids, finished_status)
            return untouched
        below = [branch.request_id for each in doomed for branch in each.subtree() if branch.phase != "finished"]
        # Children first: a parent that is aborted then has none left to abort.
        finished: list[Request] = []
        for name in dict.fromkeys([*reversed(below), *ids]):
            finished += super().finish_requests(name, finished_status)
        return finished

    def resume(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Let a sequence that waits for a caller go on, with ``token_ids`` after its children's results.

        Raises:
            ValueError: no such sequence waits, an id lies outside the vocabulary, or there are too many.
        """
        branch = self._branches.get(request_id)
        if branch is None or not branch.awaits_resume:
            raise nobody_waits(request_id, (each.request_id for each in self._branches.values() if each.awaits_resume))
        self.trees.resume(branch, self.hooks.merger.checked(branch, token_ids))

    def check_integrity(self) -> None:
        """Raise an `IntegrityError` that lists all the counts, unless trees, queues and blocks add up."""
        self.trees.check_integrity()
        check_queues_of(self, self._blocked)
        check_blocks(self.kv_cache_manager, self._forks)
        blocked = {branch.request_id for branch in self.trees.branches if branch.phase == "blocked"}
        if blocked != set(self._blocked):
            strays = f"{sorted(blocked ^ set(self._blocked))} are BLOCKED in the scheduler or in the trees, not in both"
            raise IntegrityError(f"{strays}\n{self.trees.report()}")

    def branch_of(self, request_id: str) -> V1Branch | None:
        """The branch of an unfinished request; None if no hook has touched it."""
        return self._branches.get(request_id)

    def _sample(self, request: Request, new_token_ids: list[int], is_stale: bool = False) -> tuple[list[int], bool]:
        """In place of upstream's `_update_request_with_output`."""
        branch = self._branches.get(request.request_id)
        token_id = new_token_ids[-1]
        is_hook = token_id in self._handlers
        if branch is None and not is_hook:
            return self._append(request, new_token_ids, is_stale)
        branch = self._plant(request) if branch is None else branch
        decided = self.hooks.decider.decide(token_id, branch) if is_hook and branch.limits.hooks else None
        if branch.phase == "finished":
            # Its own handler has aborted it, so it has no blocks that upstream could enter into its prefix cache.
            request.num_computed_tokens = 0
            return [], False
        new_token_ids, stopped = self._append(request, new_token_ids, is_stale)
        stopped = stopped or self._ends_full(request)
        ending = ending_of(branch.sequence, token_id)
        if ending is not None:
            self._end(branch, ending)
            return new_token_ids, True
        if decided is not None:
            stopped = self._carry_out(decided, branch)
        return new_token_ids, stopped

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        branch = self._branches.get(request.request_id)
        if branch is not None:
            self._abort(branch)
        freed: tuple[Any, Any] = super()._free_request(request, *args, **kwargs)
        return freed

    def _plant(self, request: Request) -> V1Branch:
        branch = self.trees.plant(self.hooks.sequence_of(request), self.hooks.limits_of(request))
        self._branches[request.request_id] = branch
        return branch

    def _carry_out(self, decided: Decided, branch: V1Branch) -> bool:
        """Spawn and block as decided; return whether the sequence is BLOCKED now."""
        made = self.hooks.decider.effects(decided, branch)
        if made is None:
            return False
        effects, children = made
        for plan, child in zip(effects.children, children, strict=True):
            self._branches[plan.request_id] = self.trees.spawn(branch, plan, self.hooks.sequence_of(child))
            self._forks.add(branch.sequence.request, child)
            self.requests[plan.request_id] = child
            self._enqueue_waiting_request(child)
            self._ledger.note(branch, spawned(plan, child, branch))
            if self.log_stats:
                child.record_event(EngineCoreEventType.QUEUED)
        if effects.blocks_until is None:
            return False
        self.trees.block(branch, effects.blocks_until)
        self._ledger.note(branch, Blocked(branch.request_id, effects.blocks_until == "caller"))
        self._block(branch.sequence.request)
        return True

    def _end(self, branch: V1Branch, ending: range) -> None:
        """Note that a sequence has ended. With unjoined children it is BLOCKED until they have finished."""
        branch.sequence.note_end()
        self._ledger.note(branch, ended(branch, ending))
        if self.trees.end(branch, ending):
            del self._branches[branch.request_id]
        else:
            self._block(branch.sequence.request)

    def _is_of_a_tree(self, request: Request) -> bool:
        return request.request_id in self._branches

    def _settle(self) -> None:
        while self.trees.has_unsettled:
            # A join may finish its sequence, so that its parent is ready too.
            for branch in ready(self.trees.take_unsettled()):
                self._resume(branch)

    def _resume(self, branch: V1Branch) -> None:
        request = branch.sequence.request
        merge = self.hooks.merger.merge(branch)
        if branch.phase != "blocked":
            # Its own join function has aborted it.
            return
        ends = branch.ended_as is not None or merge.ends_at_length
        num_prefill = 0 if ends else request.num_tokens - request.num_computed_tokens
        self.trees.join(branch, merge, num_prefill, 0)
        self._ledger.note(branch, joined(branch, merge, num_prefill))
        for below in branch.take_forgettable():
            below.sequence.let_go()
        self._unblock(request)
        if branch.ended_as is not None:
            self._finish(branch)
            return
        begin_session(request, params_after_join(branch))
        request.status = RequestStatus.WAITING
        self._enqueue_waiting_request(request)

    def _finish(self, branch: V1Branch) -> None:
        """Finish a sequence with the end it had, or with the model's length, after its join."""
        request = branch.sequence.request
        request.status = branch.sequence.ended_with or RequestStatus.FINISHED_LENGTH_CAPPED
        self._end(branch, branch.ending)
        self._free_request(request)
        if branch.parent is None:
            self._ledger.finish(branch)

    def _abort(self, branch: V1Branch) -> None:
        del self._branches[branch.request_id]
        self._unblock(branch.sequence.request)
        self._forks.release(branch.request_id)
        self.trees.abort(branch)
        self._ledger.note(branch, Aborted(branch.request_id))
        below = [child.request_id for child in branch.subtree() if child.phase != "finished"]
        self.finish_requests(below, RequestStatus.FINISHED_ABORTED)
