# SPDX-License-Identifier: Apache-2.0
"""The scheduler of an engine with sequence hooks: it moves sequences as the driver of their trees says.

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

import copy
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Any

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.handlers.triggers import Triggers
from sequence_hooks.serving.live.trees import NUM_RECENT, Ordinary
from sequence_hooks.trace.observer import NO_RECORDER
from sequence_hooks.trace.recorder import Recorder
from sequence_hooks.tree.driver import ForkJoinDriver
from sequence_hooks.tree.events import TreeObserver
from sequence_hooks.tree.injection_plan import Source
from sequence_hooks.tree.integrity import IntegrityError
from sequence_hooks.tree.log import HookLog
from sequence_hooks.tree.manager import DependencyManager
from sequence_hooks.tree.port import SequencePort
from vllm.core.admitting_scheduler import AdmittingScheduler
from vllm.core.eviction import KVEvictor
from vllm.core.hook_queues import IllegalTransition
from vllm.core.hooked_sequence import (
    STATUSES,
    V0Branch,
    V0Sequence,
    attach,
    branch_of,
    branch_of_seq,
    ordinary_of,
)
from vllm.core.injection import Injection
from vllm.core.scheduler import ScheduledSequenceGroup, SchedulerOutputs
from vllm.sequence import Sequence, SequenceGroup, SequenceGroupMetadata, SequenceStatus


class HookScheduler(AdmittingScheduler):
    """The `sequence_hooks.tree.port.SchedulerPort` of V0, over its queues and blocks. It decides nothing about trees.

    Its driver joins only at the start of `schedule`, regardless of how a child has ended, so a join never changes a
    running step.
    """

    clock = staticmethod(time.monotonic)
    """The clock of a recording, in seconds."""

    driver: ForkJoinDriver[V0Sequence]
    trees: DependencyManager[V0Sequence]
    """The trees of all its requests."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._injection = Injection(self._blocks)
        self._injects_kv = False
        self._finished_at_join: list[SequenceGroup] = []
        self._finished_ids_to_report: deque[list[str]] = deque([[], [], []])

    def attach(
        self,
        special_kwargs: SpecialKwargs,
        triggers: Triggers,
        sequences: SequencePort[V0Sequence],
        log: HookLog,
        vocab_size: int | None,
        observer: TreeObserver,
    ) -> None:
        """Attach the hooks, before the first request. The ``observer`` is told of each event of a tree."""
        path, policy = special_kwargs.record_to, special_kwargs.blocked_kv_policy
        self.observe(NO_RECORDER if path is None else Recorder(path, self.clock))
        observers = self.recorder, self._estimate, self._admission, observer
        num_recent = NUM_RECENT if special_kwargs.live_page else 0
        self.driver = ForkJoinDriver(special_kwargs, triggers, sequences, self, log, vocab_size, observers, num_recent)
        self.trees = self.driver.trees
        self.recent: deque[Ordinary] = deque(maxlen=num_recent)
        """The requests without a tree that have ended last."""

        self.evictor = KVEvictor(self._blocks, self._kept, self.trees, policy, self._priorities, self.recorder)
        self._injects_kv = special_kwargs.injects_kv

    def add_seq_group(self, seq_group: SequenceGroup) -> None:
        """Upstream's `add_seq_group`; a request samples no more tokens than its tree may, even if it never has one."""
        params = seq_group.sampling_params
        most = self.driver.max_tokens_without_tree(params)
        if most != params.max_tokens:
            seq_group.sampling_params = copy.copy(params)
            seq_group.sampling_params.max_tokens = most
            seq_group.sampling_params.min_tokens = min(params.min_tokens, most)
        super().add_seq_group(seq_group)

    def enqueue_children(self, parent: V0Branch, children: Collection[V0Branch]) -> None:
        """Queue new children; they run as soon as there is room.

        Those that share no block with their parent are prompts like any other, ahead of new requests.

        Raises:
            IllegalTransition: the parent has no block table to share.
        """
        if not self._has_blocks(parent.sequence.group):
            raise IllegalTransition(f"{parent.request_id} spawns without a block table")
        alone: list[SequenceGroup] = []
        self.forked.begin(parent, parent.sequence.group)
        for child in children:
            assert child.spec is not None
            attach(child)
            group = child.sequence.group
            group.metrics.last_token_time = child.spawn_time
            self.recorder.track(group)
            if self._blocks.fork(parent.sequence.seq, child.sequence.seq, child.spec.num_shared):
                self.forked.append(child, group)
            else:
                self.trees.discard_injected(child)
                alone.append(group)
        self.waiting.extendleft(reversed(alone))

    def block_sequence(self, branch: V0Branch) -> None:
        if branch.outcome is not None:
            self._kept.release(branch)
        # One that a join has filled up to the model's length is BLOCKED already.
        if branch.sequence.group not in self.blocked:
            self._move(branch.sequence.group, SequenceStatus.BLOCKED)

    def kv_source(self, child: V0Branch) -> Source:
        return self._kept.source(child)

    def cut_kv(self, branch: V0Branch, num_kept: int) -> int:
        seq, num_slots = branch.sequence.seq, 0
        num_computed: int = seq.get_num_computed_tokens()
        if self._has_blocks(branch.sequence.group):
            num_slots = self._blocks.cut(seq, num_kept)
        num_computed = min(num_computed, num_slots)
        seq.reset_state_for_recompute()
        seq.data.update_num_computed_tokens(num_computed)
        return num_computed

    def allocate_injected(self, branch: V0Branch) -> bool:
        """Whether its KV is on the device; it gets slots for the rest when it is scheduled."""
        return self._blocks.is_on_device(branch.sequence.seq)

    def enqueue_joined(self, branch: V0Branch) -> None:
        """Queue a sequence, with what it has to compute as a prefill."""
        group, seq, injected = branch.sequence.group, branch.sequence.seq, branch.injected
        num_uncomputed = seq.data.get_num_uncomputed_tokens()
        if injected is not None and injected.copies:
            num_uncomputed = len(injected.glue)
        else:
            self._kept.release(branch)
        if self._has_blocks(group) and num_uncomputed > 1:
            seq.reset_state_for_recompute()
            seq.data.update_num_computed_tokens(seq.get_len() - num_uncomputed)
        is_swapped = self._has_blocks(group) and not self._blocks.is_on_device(seq)
        self._move(group, SequenceStatus.SWAPPED if is_swapped else SequenceStatus.WAITING)

    def finish_joined(self, branch: V0Branch) -> None:
        assert branch.outcome is not None
        group = branch.sequence.group
        self._move(group, STATUSES[branch.outcome])
        self._kept.release(branch)
        # Upstream emits the output of a group that ends outside a step through this list.
        self._finished_at_join.append(group)
        self.free_seq(group.first_seq)
        self._finished_ids_to_report[-1].append(branch.request_id)

    def abort_sequences(self, branches: Collection[V0Branch]) -> None:
        for branch in branches:
            group = branch.sequence.group
            if group in self.blocked or group in self.forked:
                self._move(group, SequenceStatus.FINISHED_ABORTED)
                self.free_seq(group.first_seq)
                self._finished_requests_ids.append(group.request_id)
        super().abort_seq_group({branch.request_id for branch in branches})
        for branch in branches:
            self.driver.abort(branch)
            self._kept.release(branch)

    def cancel_sequences(self, branches: Collection[V0Branch]) -> None:
        if self.output_proc_callback is not None:
            # With asynchronous processing, tokens of the step before may not be processed yet.
            for branch in branches:
                self.output_proc_callback(request_id=branch.request_id)
            self.free_finished_seq_groups()
        cancelled = [branch for branch in branches if branch.phase != "finished"]
        self.abort_sequences(cancelled)
        # Streams are told of these ends, as of all ends outside a step.
        self._finished_at_join += (branch.sequence.group for branch in cancelled)

    def abort_seq_group(
        self, request_id: str | Iterable[str], seq_id_to_seq_group: dict[str, Any] | None = None
    ) -> None:
        """Abort requests or single branches, with all their descendants, in any status."""
        request_ids = {request_id} if isinstance(request_id, str) else set(request_id)
        samples = seq_id_to_seq_group if seq_id_to_seq_group is not None else {}
        below = self.driver.unfinished_below(self._named(request_ids, samples))
        # The other samples finish their request without the aborted one, which upstream then finds by its own id.
        for request_id in (request_ids | {branch.request_id for branch in below}) & samples.keys():
            samples.pop(request_id).to_be_finished.pop(request_id, None)
        self.abort_sequences(below)
        super().abort_seq_group(request_ids, samples)
        self.note_if_idle()

    def free_seq(self, seq: Sequence) -> None:
        """Free the blocks of a sequence, unless they are kept for its parent."""
        branch = branch_of_seq(seq)
        if not self._kept.holds(seq):
            if branch is not None and self._has_blocks(branch.sequence.group) and self.driver.keeps_kv(branch):
                self._kept.keep(branch)
            else:
                self._blocks.free(seq)
        if seq.is_finished():
            self.recorder.ended(seq)

    def _free_finished_seqs(self, seq_group: SequenceGroup) -> None:
        super()._free_finished_seqs(seq_group)
        if self.recent.maxlen and seq_group.is_finished() and branch_of(seq_group) is None:
            self.recent.append(ordinary_of(seq_group, time.time()))

    def schedule(self) -> tuple[Any, SchedulerOutputs, bool]:
        """Upstream's `schedule`, after joining the parents that can resume."""
        start = self.recorder.now()
        self.driver.join_ready()
        metadata, outputs, allow_async_output_proc = super().schedule()
        scheduled = outputs.scheduled_seq_groups
        if self._injects_kv:
            metadata = [self._with_injection(*pair) for pair in _pairs(metadata, scheduled)]
        outputs.ignored_seq_groups = [group for group in outputs.ignored_seq_groups if self._end_ignored(group)]
        outputs.ignored_seq_groups += self._finished_at_join
        self._finished_at_join = []
        if self.recorder.is_recording:
            for group in outputs.ignored_seq_groups:
                self.recorder.ended(group.first_seq)
            self.note_step(start, _pairs(metadata, scheduled))
        return metadata, outputs, allow_async_output_proc

    def get_and_reset_finished_requests_ids(self) -> list[str]:
        """Upstream's ids, and those of the sequences that ended at a join two steps ago.

        Upstream's engine forgets the samples (n > 1) that this returns, and makes their outputs in the same step or,
        if outputs are processed asynchronously, in the next.
        """
        self._finished_ids_to_report.append([])
        return [*super().get_and_reset_finished_requests_ids(), *self._finished_ids_to_report.popleft()]

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
        """Whether no sequence can continue until a caller resumes one."""
        can_go_on = self.waiting or self.running or self.swapped or self.forked or self.trees.has_unsettled
        return bool(self.blocked) and not can_go_on

    def _append_slots(
        self, seq_group: SequenceGroup, blocks_to_copy: list[tuple[int, int]], enable_chunking: bool = False
    ) -> None:
        seq, branch = seq_group.first_seq, branch_of(seq_group)
        injected = None if branch is None else branch.injected
        is_copied = injected is not None and bool(injected.copies)
        if branch is not None and (is_copied or branch.positions.last_change >= self._blocks.num_slots(seq) > 0):
            self._blocks.leave_cache(seq)
        num_before = len(blocks_to_copy)
        super()._append_slots(seq_group, blocks_to_copy, enable_chunking)
        self._blocks.note_copies(blocks_to_copy[num_before:])
        if injected is not None and is_copied:
            self._injection.place(seq_group, injected.take_copies())

    def _with_injection(self, metadata: SequenceGroupMetadata, group: SequenceGroup) -> SequenceGroupMetadata:
        hooked, are_copied = self._injection.metadata(metadata, group)
        if are_copied:
            # The step is already scheduled: blocks that are freed now are not written to before it has run.
            self._kept.release(group.first_seq.branch)
        return hooked

    def _end_ignored(self, group: SequenceGroup) -> bool:
        """Note the end of a group that can never fit; return False if it first waits for its children."""
        branch = branch_of(group)
        if branch is not None:
            self.driver.end(branch, range(0))
        return group.is_finished()

    def _named(self, request_ids: set[str], samples: dict[str, Any]) -> Iterator[V0Branch]:
        """The unfinished branches with these ids, and the samples (n > 1) of such requests."""
        for group in chain(self.waiting, self.running, self.swapped, self.blocked, self.forked):
            sample, branch = samples.get(group.request_id), branch_of(group)
            is_named = group.request_id in request_ids or (sample is not None and sample.group_id in request_ids)
            if branch is not None and is_named:
                yield branch


def _pairs(
    metadata: list[SequenceGroupMetadata], scheduled: Iterable[ScheduledSequenceGroup]
) -> list[tuple[SequenceGroupMetadata, SequenceGroup]]:
    return [(meta, entry.seq_group) for meta, entry in zip(metadata, scheduled, strict=True)]
