# SPDX-License-Identifier: Apache-2.0
"""KV of finished children, kept until it is copied to their parents.

child, as it ends       │ full │ full │ promi… resu… │ …lt     its parent's blocks, then its own
kept                                   +1             +1      upstream frees the child; these stay
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from sequence_hooks.kv.eviction import EvictionCandidate
from sequence_hooks.tree.injection_plan import Source
from sequence_hooks.tree.rules import is_awaited, needs_kv
from sequence_hooks.v1.core.sequence import V1Branch, num_written
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request


@dataclass(frozen=True)
class Kept:
    """The KV that is kept of one child."""

    branch: V1Branch
    child: Request
    parent: Request
    num_prompt: int
    num_available: int
    first: int
    """The index of the first of ``blocks`` in the child's block table."""

    blocks: list[KVCacheBlock]


class KeptKV:
    """Owns the references to these blocks; nothing else does.

    Args:
        free: Gives back references to blocks.
    """

    def __init__(self, manager: KVCacheManager, free: Callable[[list[KVCacheBlock]], None]) -> None:
        self._manager, self._free = manager, free
        self._by_child: dict[str, Kept] = {}
        self._children: dict[Request, list[str]] = {}
        """The children whose KV is kept, by parent."""

    def __bool__(self) -> bool:
        return bool(self._by_child)

    def keep(self, branch: V1Branch) -> None:
        """Keep the KV of a child's prefix and output; must be called before upstream frees the child."""
        assert branch.parent is not None and branch.spec is not None
        child, num_prompt = branch.sequence.request, branch.sequence.num_prompt_tokens
        num_available = num_written(child)
        (manager,) = self._manager.coordinator.single_type_managers
        num_shared = branch.spec.num_shared
        first = num_shared // manager.block_size
        blocks = manager.req_to_blocks.get(child.request_id, [])[first : -(-num_available // manager.block_size)]
        if num_available > num_shared and blocks:
            self._manager.block_pool.touch(blocks)
            parent = branch.parent.sequence.request
            self._children.setdefault(parent, []).append(child.request_id)
            self._by_child[child.request_id] = Kept(branch, child, parent, num_prompt, num_available, first, blocks)

    def source(self, branch: V1Branch) -> Source:
        """What a join can copy of a finished child's KV."""
        kept = self._by_child.get(branch.request_id)
        return Source(branch.child_positions, 0 if kept is None else kept.num_available)

    def slot(self, child: str, index: int) -> int:
        """The slot of a kept child's token, by its index in the child's context."""
        kept, size = self._by_child[child], self.block_size
        return kept.blocks[index // size - kept.first].block_id * size + index % size

    def release_children(self, parent: Request) -> None:
        """Give back all KV that is kept of the children of ``parent``."""
        for child in list(self._children.get(parent, ())):
            self.release(child)

    def release_settled(self, parent: Request) -> None:
        """Give back the KV of the children of ``parent`` that no later join needs."""
        for child in list(self._children.get(parent, ())):
            if not needs_kv(self._by_child[child].branch):
                self.release(child)

    def release_lost(self, parent: Request) -> None:
        """Give back KV that a ``parent`` without its own KV cannot use: of children that it waits for or has joined."""
        for child in list(self._children.get(parent, ())):
            branch = self._by_child[child].branch
            if is_awaited(branch) or not needs_kv(branch):
                self.release(child)

    def release(self, child: str) -> bool:
        """Give back the KV that is kept of a child; return whether there was any."""
        kept = self._by_child.pop(child, None)
        if kept is None:
            return False
        others = self._children[kept.parent]
        others.remove(child)
        if not others:
            del self._children[kept.parent]
        self._free(kept.blocks[::-1])
        return True

    def candidates(self, busy: Collection[Request]) -> Iterator[EvictionCandidate[Request]]:
        """The kept KV that could be evicted: of children whose parents are not ``busy`` copying it."""
        for kept in self._by_child.values():
            if kept.parent in busy:
                continue
            yield EvictionCandidate(
                holder=kept.child,
                priority=kept.child.priority,
                num_all=len(kept.blocks),
                num_owned=sum(block.ref_cnt == 1 for block in kept.blocks),
                block_size=self.block_size,
                num_computed_tokens=kept.num_available - kept.num_prompt,
            )

    @property
    def held(self) -> dict[str, list[int]]:
        """The ids of the blocks that are kept, by child."""
        return {f"kept of {child}": [block.block_id for block in kept.blocks] for child, kept in self._by_child.items()}

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return int(self._manager.coordinator.single_type_managers[0].block_size)
