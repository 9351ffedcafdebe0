# SPDX-License-Identifier: Apache-2.0
"""KV of children that have ended, kept until their parents are joined and have copied it."""

from collections.abc import Iterator

from sequence_hooks.tree.injection_plan import Source
from sequence_hooks.tree.rules import needs_kv
from vllm.core.hooked_sequence import V0Branch, num_alike
from vllm.core.shared_blocks import SharedBlocks
from vllm.sequence import Sequence, SequenceGroup


class KeptKV:
    """Owns the blocks of finished children whose parents are not joined yet."""

    def __init__(self, blocks: SharedBlocks) -> None:
        self._blocks = blocks
        self._by_parent: dict[V0Branch, list[V0Branch]] = {}
        self._num_alike: dict[int, int] = {}
        """By sequence id, how much of a child's KV may stay in the prefix cache. A join drops what its branch knows of
        injected KV, and its blocks are freed later."""

    def __bool__(self) -> bool:
        return bool(self._by_parent)

    def keep(self, child: V0Branch) -> None:
        """Keep the KV of a child that has just finished."""
        assert child.parent is not None
        self._by_parent.setdefault(child.parent, []).append(child)
        self._num_alike[child.sequence.seq.seq_id] = num_alike(child.sequence.seq)

    def holds(self, seq: Sequence) -> bool:
        """Whether the blocks of ``seq`` are kept."""
        return seq.seq_id in self._num_alike

    def groups(self) -> Iterator[SequenceGroup]:
        """The children whose KV can be given up, because no copy of it is under way."""
        children = (child for children in self._by_parent.values() for child in children)
        return (child.sequence.group for child in children if needs_kv(child))

    def source(self, child: V0Branch) -> Source:
        """What a join can copy of a child's KV."""
        sequence = child.sequence
        is_here = self.holds(sequence.seq) and self._blocks.is_on_device(sequence.seq)
        num_available = sequence.num_computed_tokens if is_here else 0
        return Source(child.child_positions, num_available)

    def release(self, parent: V0Branch) -> None:
        """Free the KV that is kept of the children of ``parent`` that no later join needs."""
        children = self._by_parent.pop(parent, ())
        for child in children:
            if not needs_kv(child):
                seq = child.sequence.seq
                self._blocks.free(seq, self._num_alike.pop(seq.seq_id))
        if left := [child for child in children if needs_kv(child)]:
            self._by_parent[parent] = left
