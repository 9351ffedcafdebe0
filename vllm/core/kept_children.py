# SPDX-License-Identifier: Apache-2.0
"""KV of children that have ended, kept for their parents: it is copied when these are joined."""

from collections.abc import Iterator

from vllm.core.shared_blocks import SharedBlocks
from vllm.hooks.branch import Branch
from vllm.sequence import Sequence, SequenceGroup


class KeptChildren:
    """Owns the blocks of finished children whose parents are not joined yet."""

    def __init__(self, blocks: SharedBlocks) -> None:
        self._blocks = blocks
        self._by_parent: dict[Branch, list[Branch]] = {}
        self.seq_ids: set[int] = set()
        """Of all children whose KV is kept."""

    def __bool__(self) -> bool:
        return bool(self._by_parent)

    def keep(self, child: Branch) -> None:
        """Keep the KV of a child that has just finished."""
        assert child.parent is not None
        self._by_parent.setdefault(child.parent, []).append(child)
        self.seq_ids.add(child.seq.seq_id)

    def holds(self, seq: Sequence) -> bool:
        """Whether the blocks of ``seq`` are kept."""
        return seq.seq_id in self.seq_ids

    def groups(self) -> Iterator[SequenceGroup]:
        """Those whose KV can be given up: no copy of it is under way."""
        waiting = (children for parent, children in self._by_parent.items() if parent.num_joined < len(parent.children))
        return (child.seq_group for children in waiting for child in children)

    def num_computed(self, child: Branch) -> int:
        """Tokens of a child's context whose KV can be copied."""
        is_here = self.holds(child.seq) and self._blocks.is_on_device(child.seq)
        return child.seq.get_num_computed_tokens() if is_here else 0

    def has_children_of(self, parent: Branch) -> bool:
        """Whether KV of children of ``parent`` is kept."""
        return parent in self._by_parent

    def release(self, parent: Branch) -> None:
        """Give back what the children of ``parent`` hold. Nobody asks for the contexts of the joined ones any more."""
        for child in self._by_parent.pop(parent, ()):
            self.seq_ids.remove(child.seq.seq_id)
            self._blocks.free(child.seq)
        parent.forget_joined()
