# SPDX-License-Identifier: Apache-2.0
"""KV of children that have ended, kept until their parents are joined and have copied it."""

from collections.abc import Iterator

from sequence_hooks.tree.injection import Source
from vllm.core.forgotten import forget_joined
from vllm.core.hooked_sequence import V0Branch
from vllm.core.shared_blocks import SharedBlocks
from vllm.sequence import Sequence, SequenceGroup


class KeptChildren:
    """Owns the blocks of finished children whose parents are not joined yet."""

    def __init__(self, blocks: SharedBlocks) -> None:
        self._blocks = blocks
        self._by_parent: dict[V0Branch, list[V0Branch]] = {}
        self.seq_ids: set[int] = set()
        """The sequence ids of all children whose KV is kept."""

    def __bool__(self) -> bool:
        return bool(self._by_parent)

    def keep(self, child: V0Branch) -> None:
        """Keep the KV of a child that has just finished."""
        assert child.parent is not None
        self._by_parent.setdefault(child.parent, []).append(child)
        self.seq_ids.add(child.sequence.seq.seq_id)

    def holds(self, seq: Sequence) -> bool:
        """Whether the blocks of ``seq`` are kept."""
        return seq.seq_id in self.seq_ids

    def groups(self) -> Iterator[SequenceGroup]:
        """The children whose KV can be given up, because no copy of it is under way."""
        waiting = (children for parent, children in self._by_parent.items() if parent.num_joined < len(parent.children))
        return (child.sequence.group for children in waiting for child in children)

    def source(self, child: V0Branch) -> Source:
        """What a join can copy of a child's KV."""
        sequence = child.sequence
        is_here = self.holds(sequence.seq) and self._blocks.is_on_device(sequence.seq)
        num_available = sequence.num_computed_tokens if is_here else 0
        return Source(len(sequence.prompt_token_ids), num_available, child.injected)

    def release(self, parent: V0Branch) -> None:
        """Free what the children of ``parent`` hold. The contexts of joined ones are no longer needed."""
        for child in self._by_parent.pop(parent, ()):
            self.seq_ids.remove(child.sequence.seq.seq_id)
            self._blocks.free(child.sequence.seq)
        forget_joined(parent)
