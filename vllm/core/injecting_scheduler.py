# SPDX-License-Identifier: Apache-2.0
"""Lets parents get their children's KV with ``child_merge_strategy="kv_inject"``, and does nothing without it."""

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.tree.rules import keeps_kv
from vllm.core.hooked_sequence import V0Branch, injected_into
from vllm.core.injection import Injection
from vllm.core.priority_scheduler import PriorityScheduler
from vllm.sequence import SequenceGroup, SequenceGroupMetadata


class InjectingScheduler(PriorityScheduler):
    """`PriorityScheduler`, which also places KV that a join has planned to copy, and says whose KV is worth keeping."""

    _special_kwargs: SpecialKwargs
    _injection: Injection

    def attach_injection(self, special_kwargs: SpecialKwargs) -> None:
        """Attach the hooks; must be called before the first request."""
        self._special_kwargs = special_kwargs
        self._injection = Injection(self._blocks, self._kept, special_kwargs.position_rule)

    def _append_slots(
        self, seq_group: SequenceGroup, blocks_to_copy: list[tuple[int, int]], enable_chunking: bool = False
    ) -> None:
        injected = injected_into(seq_group.first_seq)
        if injected is not None and injected.copies:
            self._blocks.leave_cache(seq_group.first_seq)
        super()._append_slots(seq_group, blocks_to_copy, enable_chunking)
        if injected is not None and injected.copies:
            self._injection.place(seq_group, injected.take_copies())

    def _with_injection(self, metadata: SequenceGroupMetadata, group: SequenceGroup) -> SequenceGroupMetadata:
        hooked, are_copied = self._injection.metadata(metadata, group)
        if are_copied:
            # The step is already scheduled: what is freed now is not written to before it has run.
            self._kept.release(group.first_seq.branch)
        return hooked

    def _is_wanted(self, branch: V0Branch) -> bool:
        """Whether a sequence that is freed has KV that its parent may use, and that is not kept already."""
        if not self._special_kwargs.injects_kv or self._kept.holds(branch.sequence.seq):
            return False
        return keeps_kv(branch) and self._has_blocks(branch.sequence.group)
