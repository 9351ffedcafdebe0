# SPDX-License-Identifier: Apache-2.0
"""The scheduler of an engine that records its run: the `HookScheduler`, and a line for all that it does."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from vllm.config import SpecialKwargs, VllmConfig
from vllm.core.hook_scheduler import HookScheduler
from vllm.core.kv_pressure import KVPressure, Option
from vllm.core.scheduler import SchedulerOutputs
from vllm.hooks import recording
from vllm.hooks.branch import Branch
from vllm.hooks.config import BlockedKVPolicy
from vllm.hooks.merge import Span
from vllm.hooks.recording import Recorder
from vllm.hooks.results import Join
from vllm.hooks.shown import shortened, shortened_error
from vllm.sequence import Sequence, SequenceGroup, SequenceGroupMetadata, SequenceStatus
from vllm.utils import Device, resolve_obj_by_qualname


class RecordingScheduler(HookScheduler):
    """Writes what happens to the file of `SpecialKwargs.record_to`, and changes nothing of it."""

    clock = staticmethod(time.monotonic)
    """Seconds."""

    def attach(self, join: Callable[[Branch], tuple[Join, list[Span]]], special_kwargs: SpecialKwargs) -> None:
        """See `HookScheduler.attach`; begins the recording."""
        assert special_kwargs.record_to is not None
        self.recorder = Recorder(special_kwargs.record_to, self.clock)
        self._live: set[int] = set()
        """Ids of the sequences whose end is not noted yet."""

        self._is_idle = True
        """The latest step in the file has nothing scheduled."""

        super().attach(join, special_kwargs)
        manager = self.block_manager
        self.recorder.note(recording.Stream, block_size=manager.block_size, num_blocks=manager.num_total_gpu_blocks)

    def set_policy(self, policy: BlockedKVPolicy) -> None:
        """See `ParkingScheduler.set_policy`."""
        self.pressure = _RecordingPressure(self._blocks, self._kept, policy, self._urgency)
        self.pressure.scheduler = self

    def add_seq_group(self, seq_group: SequenceGroup) -> None:
        """Upstream's; a request arrives."""
        super().add_seq_group(seq_group)
        seq = seq_group.first_seq
        self._live.add(seq.seq_id)
        self.recorder.note(
            recording.Arrived,
            seq=seq.seq_id,
            request_id=seq_group.request_id,
            num_prompt_tokens=seq.get_prompt_len(),
            prompt=seq.prompt,
        )

    def spawn(self, child: Branch) -> None:
        """See `HookScheduler.spawn`."""
        super().spawn(child)
        assert child.parent is not None
        self._live.add(child.seq.seq_id)
        self.recorder.note(
            recording.Spawned,
            seq=child.seq.seq_id,
            request_id=child.seq_group.request_id,
            parent=child.parent.seq.seq_id,
            position=child.spawn_position,
            num_prompt_tokens=child.seq.get_prompt_len(),
            prefix_token_ids=child.prefix_token_ids,
        )

    def block(self, branch: Branch) -> None:
        """See `HookScheduler.block`."""
        super().block(branch)
        until = "caller" if branch.awaits_resume else "children"
        self.recorder.note(recording.Blocked, seq=branch.seq.seq_id, until=until)

    def schedule(self) -> tuple[Any, SchedulerOutputs, bool]:
        """See `HookScheduler.schedule`; a step starts."""
        start = self.clock()
        metadata, outputs, allow_async_output_proc = super().schedule()
        for group in outputs.ignored_seq_groups:
            self._note_end(group.first_seq)
        entries = zip(metadata, outputs.scheduled_seq_groups, strict=True)
        self._note_step(start, [(meta, entry.seq_group.first_seq.seq_id) for meta, entry in entries])
        return metadata, outputs, allow_async_output_proc

    def free_finished_seq_groups(self) -> None:
        """Upstream's; a step has ended."""
        super().free_finished_seq_groups()
        self._note_if_idle()

    def abort_seq_group(
        self, request_id: str | Iterable[str], seq_id_to_seq_group: dict[str, Any] | None = None
    ) -> None:
        """See `HookScheduler.abort_seq_group`."""
        super().abort_seq_group(request_id, seq_id_to_seq_group)
        self._note_if_idle()

    def free_seq(self, seq: Sequence) -> None:
        """See `HookScheduler.free_seq`."""
        super().free_seq(seq)
        if seq.is_finished():
            self._note_end(seq)

    def _resume(self, branch: Branch) -> None:
        children = [child.seq.seq_id for child in branch.unjoined]
        super()._resume(branch)
        join = branch.joins[-1]
        self.recorder.note(
            recording.Joined,
            seq=branch.seq.seq_id,
            children=children,
            num_merged=join.num_merged,
            num_prefill=join.num_prefill,
            num_cut=join.num_cut,
            num_injected=0 if branch.spliced is None else len(branch.spliced.copies),
        )

    def _preempt_by_recompute(self, seq_group: SequenceGroup) -> None:
        num_before = self.pressure.num_recomputed
        super()._preempt_by_recompute(seq_group)
        num_recomputed = self.pressure.num_recomputed - num_before
        self._note_preemption(seq_group, means="recompute", num_recomputed=num_recomputed)

    def _preempt_by_swap(self, seq_group: SequenceGroup, blocks_to_swap_out: list[tuple[int, int]]) -> None:
        super()._preempt_by_swap(seq_group, blocks_to_swap_out)
        self._note_preemption(seq_group, means="swap", num_recomputed=0)

    def _swap_in(self, seq_group: SequenceGroup, blocks_to_swap_in: list[tuple[int, int]]) -> None:
        super()._swap_in(seq_group, blocks_to_swap_in)
        self.recorder.note(recording.SwappedIn, seq=seq_group.first_seq.seq_id)

    def _note_preemption(self, group: SequenceGroup, **fields: Any) -> None:
        self.recorder.note(recording.Preempted, seq=group.first_seq.seq_id, **fields)

    def _note_end(self, seq: Sequence) -> None:
        """A sequence has finished; upstream has several ways to let go of it, some of them at once."""
        branch: Branch | None = getattr(seq, "branch", None)
        will_be_blocked = branch is not None and branch.unjoined and seq.status != SequenceStatus.FINISHED_ABORTED
        if seq.seq_id not in self._live or will_be_blocked:
            return
        self._live.remove(seq.seq_id)
        self.recorder.note(
            recording.Finished,
            seq=seq.seq_id,
            reason=seq.status.name.removeprefix("FINISHED_").lower(),
            num_output_tokens=seq.get_output_len(),
            text=seq.output_text,
        )

    def _note_if_idle(self) -> None:
        if not self.has_unfinished_seqs():
            self._note_step(self.clock(), [])

    def _note_step(self, start: float, scheduled: list[tuple[SequenceGroupMetadata, int]]) -> None:
        # Whoever waits for a caller asks for a step again and again.
        if self._is_idle and not scheduled:
            return
        self._is_idle = not scheduled
        manager = self.block_manager
        self.recorder.note(
            recording.Step,
            at=start,
            prefill=[(seq, meta.token_chunk_size) for meta, seq in scheduled if meta.is_prompt],
            decode=[seq for meta, seq in scheduled if not meta.is_prompt],
            num_used_blocks=manager.num_total_gpu_blocks - self._blocks.num_free(),
            num_unshared_blocks=self._num_unshared_blocks(),
            num_blocked=len(self.blocked),
            num_waiting=len(self.waiting) + len(self.forked) + len(self.swapped),
        )

    def _num_unshared_blocks(self) -> int:
        on_device = self.block_manager.block_allocator._allocators[Device.GPU].all_block_ids
        tables = (table.physical_block_ids for table in self.block_manager.block_tables.values())
        return sum(len(block_ids) for block_ids in tables if block_ids[0] in on_device)


class _RecordingPressure(KVPressure):
    """Notes who gives up KV without being preempted."""

    scheduler: RecordingScheduler

    def _recompute_from(self, seq: Sequence, num_kept: int) -> None:
        num_before = self.num_recomputed
        super()._recompute_from(seq, num_kept)
        if seq.status != SequenceStatus.RUNNING:
            self._note(seq, means="recompute", num_recomputed=self.num_recomputed - num_before)

    def _take(self, option: Option) -> None:
        super()._take(option)
        if option.means == "swap":
            self._note(option.group.first_seq, means="swap", num_recomputed=0)

    def _note(self, seq: Sequence, **fields: Any) -> None:
        self.scheduler.recorder.note(recording.GaveUp, seq=seq.seq_id, **fields)


def start_recording(special_kwargs: SpecialKwargs, config: VllmConfig) -> None:
    """Begin the file of `SpecialKwargs.record_to`, and choose the scheduler that writes to it.

    Raises:
        ValueError: the file cannot be written, or another scheduler was chosen that doesn't record.
    """
    scheduler, path = config.scheduler_config.scheduler_cls, special_kwargs.record_to
    chosen = resolve_obj_by_qualname(scheduler) if isinstance(scheduler, str) else scheduler
    if chosen is HookScheduler:
        config.scheduler_config.scheduler_cls = f"{__name__}.{RecordingScheduler.__qualname__}"
    elif not issubclass(chosen, RecordingScheduler):
        raise ValueError(
            f"special_kwargs: record_to is {shortened(path)}, and scheduler_cls={shortened(scheduler)} doesn't record; "
            f"leave scheduler_cls unset, or derive it from {__name__}.{RecordingScheduler.__qualname__}"
        )
    assert path is not None
    try:
        recording.begin(path, config.model_config.model, special_kwargs)
    except OSError as error:
        raise ValueError(
            f"special_kwargs: record_to is {shortened(path)}; give the path of a file that can be written "
            f"({shortened_error(error)})"
        ) from error
