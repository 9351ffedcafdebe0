# SPDX-License-Identifier: Apache-2.0
"""Forks: the blocks that a child shares with its parent from its spawn until it is admitted.

    parent, at the spawn      │ full │ full │ promi… │      its last block holds more tokens later
    fork                        +1     +1     +1            each block has one more owner: none is freed or reused
    child, once admitted      │ full │ full │ promi… prefix │      upstream copies the last block for the child

`ForkedBlocks` owns those references, and nothing else does: upstream's block manager takes references of its own when
it admits the child, and the fork's are given back.
"""

from collections.abc import KeysView
from dataclasses import dataclass

from sequence_hooks.v1.core.sequence import num_written
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from vllm.v1.request import Request


@dataclass(frozen=True)
class Fork:
    """Blocks with the KV of the first tokens of a child's prompt."""

    blocks: tuple[list[KVCacheBlock], ...]
    """For each KV cache group."""

    num_tokens: int


class ForkedBlocks:
    """The forks of children that are not admitted yet, in spawn order."""

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._by_child: dict[str, Fork] = {}
        self.children: KeysView[str] = self._by_child.keys()
        """The request ids of the children that have forks."""

    def add(self, parent: Request, child: Request, num_shared: int) -> None:
        """Let ``child`` share the KV that ``parent`` has written; nothing if it has none, because it was preempted.

        Args:
            num_shared: How many tokens of its parent's context the child's own begins with.
        """
        num_tokens = min(num_written(parent), num_shared)
        if num_tokens <= 0:
            return
        blocks = tuple(
            list(manager.req_to_blocks[parent.request_id][: -(-num_tokens // manager.block_size)])
            for manager in self._manager.coordinator.single_type_managers
        )
        for group in blocks:
            self._manager.block_pool.touch(group)
        self._by_child[child.request_id] = Fork(blocks, num_tokens)

    def of(self, request: Request) -> tuple[KVCacheBlocks, int] | None:
        """The blocks that a child shares, and for how many tokens; None for any other request."""
        fork = self._by_child.get(request.request_id)
        return None if fork is None else (KVCacheBlocks(fork.blocks), fork.num_tokens)

    def release(self, request_id: str) -> bool:
        """Give back the references of a child that is admitted, or was aborted; whether it had any."""
        fork = self._by_child.pop(request_id, None)
        if fork is None:
            return False
        for group in fork.blocks:
            # The last block is evicted first.
            self._manager.block_pool.free_blocks(reversed(group))
        return True

    def release_admitted(self, scheduled: KeysView[str]) -> None:
        """Give back the references of the children that are among the ``scheduled`` requests."""
        for child in self.children & scheduled:
            self.release(child)

    def release_one_for(self, request_id: str) -> bool:
        """Give back the references of the child that was spawned last; whether another attempt to allocate is worth it.

        That child finds its context in the prefix cache, or computes it. The one for which blocks are allocated comes
        last: its own fork keeps its parent from giving up those blocks, and this attempt has been made with them.
        """
        last = next((child for child in reversed(self._by_child) if child != request_id), None)
        if last is not None:
            return self.release(last)
        self.release(request_id)
        return False

    def release_all(self) -> None:
        """Give back all references."""
        for child in list(self._by_child):
            self.release(child)

    @property
    def held(self) -> dict[str, list[int]]:
        """The ids of the blocks of each fork, by child."""
        return {
            f"fork of {child}": [block.block_id for group in fork.blocks for block in group]
            for child, fork in self._by_child.items()
        }


def first_of_hit(
    hit: tuple[KVCacheBlocks, int, int, bool], num_tokens: int, block_size: int
) -> tuple[KVCacheBlocks, int, int, bool]:
    """The blocks that the prefix cache has for the first ``num_tokens`` of a request, of what it has found."""
    blocks, num_found, *others = hit
    if num_found <= num_tokens:
        return hit
    num_blocks = num_tokens // block_size
    first = KVCacheBlocks(tuple(list(group[:num_blocks]) for group in blocks.blocks))
    return first, num_blocks * block_size, *others  # type: ignore[return-value]


def check_kv_groups(config: KVCacheConfig, injects_kv: bool) -> None:
    """Raise a `ValueError` for layers whose KV a child cannot share block by block.

    With `sequence_hooks.v1.checks.keep_blocks_of_windows` those with a window count as full attention beside others
    that have none.
    """
    for group in config.kv_cache_groups:
        spec = group.kv_cache_spec
        if not isinstance(spec, FullAttentionSpec):
            kind = type(spec).__name__
            raise ValueError(
                f"special_kwargs: all layers of the model, or some beside others, are of the kind {kind}, whose blocks "
                "a child cannot share; use a model in which all layers have full attention, or some of them, and the "
                "others a window"
            )
