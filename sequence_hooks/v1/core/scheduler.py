# SPDX-License-Identifier: Apache-2.0
"""The scheduler of a V1 engine with sequence hooks, as the rest of upstream's engine calls it."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from sequence_hooks.tree.integrity import IntegrityError
from sequence_hooks.v1.core.figures import FigureCounter
from sequence_hooks.v1.core.integrity import check_blocks, check_queues_of
from sequence_hooks.v1.core.sequence import params_of
from sequence_hooks.v1.core.stats import Queue, count_requests
from sequence_hooks.v1.core.tree_scheduler import TreeScheduler, logger
from sequence_hooks.v1.wire import RESUME
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus


class HookScheduler(TreeScheduler):
    """Upstream's scheduler with BLOCKED parents and children. It stays asynchronous where upstream's is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._append_upstream = self._upstream._update_request_with_output
        self._figures = FigureCounter(self._blocked, self.kv_cache_manager, self.pressure, self.has_unfinished_requests)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Upstream's `schedule`, after joining the parents that can go on."""
        self.driver.join_ready()
        if self._branches:
            self.pressure.begin()
        else:
            self.pressure.step_aside()
        return super().schedule(*args, **kwargs)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Upstream's outputs, and what happened to trees meanwhile."""
        self._event_log.begin_step()
        sampled = chain.from_iterable(model_runner_output.sampled_token_ids)
        is_ours = bool(self._branches) or any(map(self.triggers.candidates.__contains__, sampled))
        ours = self._append_token if is_ours else self._append_upstream
        # Upstream calls it for each request. In most steps nobody is in a tree, and nothing of ours is called.
        self._update_request_with_output = ours  # type: ignore[method-assign]
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.driver.join_ready()
        self.note_if_idle()
        figures = self._figures.news() if self.log_stats else None
        if self._event_log or figures is not None:
            self._event_log.write(outputs, figures)
        return outputs

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        """Upstream's, in which a tree counts as one request."""
        stats: SchedulerStats | None = super().make_stats(*args, **kwargs)
        if stats is not None and self._branches:
            num_deferred = len(self.deferred)
            num_waiting = len(self.waiting) + len(self.waiting_first) - num_deferred
            lengths: dict[Queue, int] = {
                "running": len(self.running),
                "waiting": num_waiting,
                "deferred": num_deferred,
            }
            count_requests(stats, lengths, self._queued_of_trees())
        return stats

    def _queued_of_trees(self) -> Iterator[tuple[str, Queue]]:
        """For each queued sequence of a tree, and each piece of glue, its request's id and its queue."""
        of_trees = ((branch, branch.sequence.request) for branch in self._branches.values())
        glue = ((self._branches[each.owner.request_id], each.request) for each in self._glue.values())
        for branch, request in chain(of_trees, glue):
            if request.status == RequestStatus.RUNNING:
                yield branch.root.request_id, "running"
            elif request.request_id not in self._blocked and not request.is_finished():
                yield branch.root.request_id, "deferred" if request in self.deferred else "waiting"

    def add_request(self, request: Request) -> None:
        """As upstream; a front end's resumption of a sequence is not queued."""
        resumption = (params_of(request).extra_args or {}).get(RESUME)
        if resumption is None:
            super().add_request(request)
            return
        name, token_ids = resumption
        try:
            self.driver.resume(name, token_ids)
        except ValueError as error:
            # The front end has checked it: the sequence was aborted meanwhile.
            logger.debug("%s", error)

    def has_requests(self) -> bool:
        """As upstream, and while something is to be told. If all wait for a caller, the engine sleeps."""
        return super().has_requests() or bool(self._event_log) or self.trees.has_unsettled

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """Abort requests or single branches, with all their descendants, whatever their status."""
        given = self.requests if request_ids is None else [request_ids] if isinstance(request_ids, str) else request_ids
        # Glue ends with its owner.
        ids = [name for name in given if name not in self._glue] if self._glue else list(given)
        named = [self._branches[name] for name in ids if name in self._branches]
        if not named:
            untouched: list[Request] = super().finish_requests(ids, finished_status)
            return untouched
        below = [branch.request_id for branch in self.driver.unfinished_below(named)]
        # Children first: a parent that is aborted then has none left to abort.
        finished: list[Request] = []
        for name in dict.fromkeys([*below, *ids]):
            finished += super().finish_requests(name, finished_status)
        return finished

    def check_integrity(self) -> None:
        """Raise an `IntegrityError` that lists all the counts, unless trees, queues and blocks add up."""
        self.trees.check_integrity()
        check_queues_of(self, self._blocked)
        check_blocks(self.kv_cache_manager, self._forks, self._kept, self._glue)
        blocked = {branch.request_id for branch in self.trees.branches if branch.phase == "blocked"}
        if blocked != set(self._blocked):
            strays = f"{sorted(blocked ^ set(self._blocked))} are BLOCKED in the scheduler or in the trees, not in both"
            raise IntegrityError(f"{strays}\n{self.trees.report()}")
