# SPDX-License-Identifier: Apache-2.0
"""The scheduler of an engine with sequence hooks: it moves sequences as the rules and the trees say.

A child is queued with a fork of its parent's block table. A BLOCKED parent is not scheduled, and keeps its
blocks unless others need them; once its children have finished it is joined and scheduled again:

    spawn              WAITING (forked) ──► RUNNING
    promise, sync      RUNNING ──► BLOCKED
    its own end        FINISHED_* ──► BLOCKED, with children still unjoined
    children finished  BLOCKED ──► WAITING (forked)  KV kept, or some of it: prefills what is uncomputed
                               ──► WAITING           KV given up: recomputed
                               ──► SWAPPED           KV in swap space: copied back, prefills what is new
                               ──► FINISHED_*        it had ended, or has no room left
    preempted          RUNNING ──► WAITING (forked)  its shared prefix is kept: recomputes what is its own
"""

import time
from collections import deque
from collections.abc import Iterable
from itertools import chain
from typing import Any

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.limits import limits_of
from sequence_hooks.serving.live.trees import NUM_RECENT
from sequence_hooks.trace.observer import SILENT, TreeNotes
from sequence_hooks.trace.recorder import Recorder
from sequence_hooks.tree.injection import InjectedKV
from sequence_hooks.tree.integrity import IntegrityError
from sequence_hooks.tree.manager import DependencyManager
from sequence_hooks.tree.rules import Decision, ready
from sequence_hooks.tree.sequence import WaitsFor
from vllm.core.forgotten import forget_joined
from vllm.core.hooked_sequence import (
    Merges,
    V0Branch,
    V0Sequence,
    attach,
    branch_of,
    branch_of_seq,
    is_below,
    status_of,
)
from vllm.core.injecting_scheduler import InjectingScheduler
from vllm.core.scheduler import ScheduledSequenceGroup, SchedulerOutputs
from vllm.core.transitions import IllegalTransition
from vllm.sequence import Sequence, SequenceGroup, SequenceGroupMetadata, SequenceStatus


class HookScheduler(InjectingScheduler):
    """Moves BLOCKED parents and children between the queues.

    The end of a child is noticed at the next `schedule`, whatever its cause, so a join never changes a
    running step.
    """

    clock = staticmethod(time.monotonic)
    """The clock of a recording, in seconds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.trees: DependencyManager[V0Sequence] = DependencyManager()
        self._finished_at_join: list[SequenceGroup] = []
        self._told_later: deque[list[str]] = deque([[], [], []])
        self._merger: Merges

    def attach(self, merger: Merges, special_kwargs: SpecialKwargs) -> None:
        """Attach the hooks; must be called before the first request."""
        self._merger = merger
        path = special_kwargs.record_to
        observer = SILENT if path is None else Recorder(path, self.clock)
        num_recent = NUM_RECENT if special_kwargs.live_page else 0
        self.trees = DependencyManager([TreeNotes(observer)], num_recent=num_recent)
        self.observe(observer)
        self.set_policy(special_kwargs.blocked_kv_policy)
        self.attach_injection(special_kwargs)

    def branch_for(self, group: SequenceGroup) -> V0Branch:
        """The group's branch; the root of a new tree if it has none yet."""
        branch = branch_of(group)
        if branch is None:
            limits = limits_of(self._special_kwargs, group.sampling_params.extra_args)
            branch = self.trees.add_root(V0Sequence(group), limits)
            attach(branch)
        return branch

    def spawn(self, parent: V0Branch, decision: Decision, made: Iterable[V0Sequence]) -> None:
        """Queue the children of a ``decision`` that were ``made``; they run as soon as there is room.

        Those that share no block with their parent are prompts like any other, ahead of new requests.

        Raises:
            IllegalTransition: the parent has no block table to share.
        """
        if decision.children and not self._has_blocks(parent.sequence.group):
            raise IllegalTransition(f"{parent.request_id} spawns without a block table")
        alone: list[SequenceGroup] = []
        for (spec, _), sequence in zip(decision.children, made, strict=True):
            child = self.trees.spawn(parent, spec, decision.handler, sequence)
            attach(child)
            sequence.group.metrics.last_token_time = child.spawn_time
            self.notes.lives(sequence.group)
            if self._blocks.fork(parent.sequence.seq, sequence.seq, spec.num_shared):
                self.forked.append(sequence.group)
            else:
                alone.append(sequence.group)
        self.waiting.extendleft(reversed(alone))

    def block(self, branch: V0Branch, waits_for: WaitsFor) -> None:
        """Set a running parent aside until its children have finished, or also until a caller resumes it."""
        self._move(branch.sequence.group, SequenceStatus.BLOCKED)
        self.trees.block(branch, waits_for)

    def end(self, branch: V0Branch, ending: range | None = None) -> None:
        """Note that a sequence has finished. With unjoined children it is BLOCKED until they have finished.

        Args:
            ending: See `DependencyManager.end`.
        """
        if self.trees.end(branch, ending):
            if branch.parent is not None:
                self._admission.note_end(branch.sequence.seq)
            return
        self._kept.release(branch)
        self._move(branch.sequence.group, SequenceStatus.BLOCKED)

    def free_seq(self, seq: Sequence) -> None:
        """Free the blocks of a sequence, unless they are kept for its parent."""
        branch = branch_of_seq(seq)
        if branch is not None and self._is_wanted(branch):
            self._kept.keep(branch)
        elif not self._kept.holds(seq):
            super().free_seq(seq)
        if seq.is_finished():
            self.notes.ended(seq)

    def schedule(self) -> tuple[Any, SchedulerOutputs, bool]:
        """Upstream's `schedule`, after joining the parents and admitting the children that can go on."""
        start = self.notes.now()
        self._settle()
        metadata, outputs, allow_async_output_proc = super().schedule()
        scheduled = outputs.scheduled_seq_groups
        if self._special_kwargs.injects_kv:
            metadata = [self._with_injection(*pair) for pair in _pairs(metadata, scheduled)]
        outputs.ignored_seq_groups = [group for group in outputs.ignored_seq_groups if self._end_ignored(group)]
        outputs.ignored_seq_groups += self._finished_at_join
        self._finished_at_join = []
        if self.notes.is_recording:
            for group in outputs.ignored_seq_groups:
                self.notes.ended(group.first_seq)
            self.note_step(start, _pairs(metadata, scheduled))
        return metadata, outputs, allow_async_output_proc

    def get_and_reset_finished_requests_ids(self) -> list[str]:
        """Upstream's ids, and those of the sequences that ended at a join two steps ago.

        Upstream's engine forgets the samples (n > 1) that this returns, and makes their outputs in the same step or,
        if outputs are processed asynchronously, in the next.
        """
        self._told_later.append([])
        return [*super().get_and_reset_finished_requests_ids(), *self._told_later.popleft()]

    def abort_seq_group(
        self, request_id: str | Iterable[str], seq_id_to_seq_group: dict[str, Any] | None = None
    ) -> None:
        """Abort requests or single branches, with all their descendants, whatever their status."""
        request_ids = {request_id} if isinstance(request_id, str) else set(request_id)
        samples = seq_id_to_seq_group if seq_id_to_seq_group is not None else {}
        queues = chain(self.waiting, self.running, self.swapped, self.blocked, self.forked)
        branches = [branch for branch in map(branch_of, queues) if branch is not None]
        doomed = [branch for branch in branches if is_below(branch, request_ids, samples)]
        for branch in doomed:
            group = branch.sequence.group
            if group in self.blocked or group in self.forked:
                self._move(group, SequenceStatus.FINISHED_ABORTED)
                self.free_seq(group.first_seq)
                self._finished_requests_ids.append(group.request_id)
        aborted_ids = request_ids | {branch.request_id for branch in doomed}
        # The other samples finish their request without the aborted one, which upstream then finds by its own id.
        for request_id in aborted_ids & samples.keys():
            samples.pop(request_id).to_be_finished.pop(request_id, None)
        super().abort_seq_group(aborted_ids, samples)
        for branch in doomed:
            self.trees.abort(branch)
            self._kept.release(branch)
        self.note_if_idle()

    def check_integrity(self) -> None:
        """Raise an `IntegrityError` that lists all the counts, unless trees, queues and blocks add up."""
        super().check_integrity()
        self.trees.check_integrity()
        blocked = {group.request_id for group in self.blocked}
        waiting = {branch.request_id for branch in self.trees.branches if branch.phase == "blocked"}
        if blocked != waiting:
            strays = f"{sorted(blocked ^ waiting)} are BLOCKED in the queues or in the trees, but not in both"
            raise IntegrityError(f"{strays}\n{self.trees.report()}")

    def is_waiting_for_callers(self) -> bool:
        """Whether nothing can go on until a caller resumes a sequence."""
        can_go_on = self.waiting or self.running or self.swapped or self.forked or self.trees.has_unsettled
        return bool(self.blocked) and not can_go_on

    def _settle(self) -> None:
        unsettled = self.trees.take_unsettled()
        for branch in ready(unsettled):
            self._resume(branch)
        # Children with KV that their parent may still copy are forgotten when it is released.
        for branch in unsettled if not self._special_kwargs.injects_kv else ():
            forget_joined(branch)

    def _resume(self, branch: V0Branch) -> None:
        group = branch.sequence.group
        merge = self._merger.merge(branch)
        if branch.phase != "blocked":
            # Its own join function has aborted it.
            return
        ends = branch.ended_as is not None or merge.ends_at_length
        injected = None if ends or not self._special_kwargs.injects_kv else self._injection.plan(branch, merge)
        num_prefill = 0 if ends else self._make_prefill(branch, injected)
        self.trees.join(branch, merge, num_prefill, 0 if injected is None else len(injected.copies))
        if injected is None:
            self._kept.release(branch)
        if branch.ended_as is not None:
            self._finish(branch)
            return
        is_swapped = self._has_blocks(group) and not self._blocks.is_on_device(branch.sequence.seq)
        self._move(group, SequenceStatus.SWAPPED if is_swapped else SequenceStatus.WAITING)

    def _make_prefill(self, branch: V0Branch, injected: InjectedKV | None) -> int:
        """Turn what a parent has to compute into a prefill; return its number of tokens."""
        seq = branch.sequence.seq
        num_uncomputed = seq.data.get_num_uncomputed_tokens()
        if injected is not None:
            branch.inject(injected)
            num_uncomputed = len(injected.glue)
        if self._has_blocks(branch.sequence.group) and num_uncomputed > 1:
            seq.reset_state_for_recompute()
            seq.data.update_num_computed_tokens(seq.get_len() - num_uncomputed)
        return num_uncomputed

    def _finish(self, branch: V0Branch) -> None:
        group, outcome = branch.sequence.group, branch.ended_as
        assert outcome is not None
        self._move(group, status_of(outcome))
        self.end(branch)
        if branch.phase == "blocked":
            # A join has filled the model's length, and detached children are not done.
            return
        if branch.parent is None and branch.has_detached_below:
            self.trees.assemble(branch, self._merger.assemble(branch).spans)
        # Upstream emits the output of a group that ends outside a step through this list.
        self._finished_at_join.append(group)
        self.free_seq(group.first_seq)
        self._told_later[-1].append(branch.request_id)

    def _end_ignored(self, group: SequenceGroup) -> bool:
        """Note the end of a group that can never fit; return False if it first waits for its children."""
        branch = branch_of(group)
        if branch is not None:
            self.end(branch)
        return group.is_finished()


def _pairs(
    metadata: list[SequenceGroupMetadata], scheduled: Iterable[ScheduledSequenceGroup]
) -> list[tuple[SequenceGroupMetadata, SequenceGroup]]:
    return [(meta, entry.seq_group) for meta, entry in zip(metadata, scheduled, strict=True)]
