# SPDX-License-Identifier: Apache-2.0
"""Forks: the blocks that a child shares with its parent from its spawn until it is admitted.

    parent, at the spawn      │ full │ full │ promi… │      its last block holds more tokens later
    fork                        +1     +1     +1            each block has one more owner: none is freed or reused
    child, once admitted      │ full │ full │ promi… prefix │      upstream copies the last block for the child

`ForkedBlocks` owns those references, and nothing else does: upstream's block manager takes references of its own when
it admits the child, and the fork's are given back.

A state is overwritten by the next token. So before a step in which the parent runs, the children that are not admitted
in that step get a copy of it, which the children of one spawn share:

    parent, at the spawn      │ ---- │ ---- │ state… │
    before its next step      │ ---- │ ---- │ state… │ ──copied──► │ ---- │ ---- │ kept… │
"""

from collections.abc import Callable, KeysView
from dataclasses import dataclass, replace

from sequence_hooks.v1.core.kv_groups import blocks_after, copy_before_step, state_managers
from sequence_hooks.v1.core.sequence import num_written
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import MambaManager
from vllm.v1.request import Request, RequestStatus


@dataclass(frozen=True)
class Fork:
    """Blocks with the KV of the first tokens of a child's prompt, and with the state after them."""

    child: Request
    blocks: tuple[list[KVCacheBlock], ...]
    """For each KV cache group; upstream's null block stands for what is not needed."""

    num_tokens: int
    writer: Request | None
    """The request that overwrites its state in the next step in which it runs; None if none does."""

    @property
    def owned(self) -> list[KVCacheBlock]:
        """The blocks that it refers to, of all groups."""
        return [block for group in self.blocks for block in group if not block.is_null]


class ForkedBlocks:
    """The forks of children that are not admitted yet, in spawn order.

    Args:
        free: Gives back references to blocks.
    """

    def __init__(self, manager: KVCacheManager, free: Callable[[list[KVCacheBlock]], None]) -> None:
        self._manager, self._free = manager, free
        self._by_child: dict[str, Fork] = {}
        self.children: KeysView[str] = self._by_child.keys()
        """The request ids of the children that have forks."""

        self._state_managers = state_managers(manager)
        self.has_states = bool(self._state_managers)
        """Whether layers have a state, which is known after the last token that was computed, and no other."""

        self.has_states_of_drafts = any(each.num_speculative_blocks for each in self._state_managers)
        """Whether a worker keeps a state for each token of a step with drafts. Nobody else knows which one of them is
        after the last token that was accepted, so none is shared, and BLOCKED requests keep none."""

    def add(self, parent: Request, child: Request, num_shared: int) -> int:
        """Let ``child`` share what ``parent`` has computed, if it has all that the child needs.

        Otherwise, as after a preemption, the child finds its context in the prefix cache, or computes it.

        Args:
            num_shared: How many tokens of its parent's context the child's own begins with.

        Returns:
            How many tokens it shares.
        """
        num_tokens = 0 if self.has_states_of_drafts else self._num_forked(parent, child, num_shared)
        groups = self._groups_after(parent, num_tokens) if num_tokens > 0 else None
        if groups is None:
            return 0
        if self.has_states:
            # Upstream assumes that the full blocks with which a request begins are in the prefix cache.
            self._manager.cache_blocks(parent, num_tokens)
        # A state that fills its block stays: the next token's is written to another one.
        is_overwritten = any(num_tokens % each.block_size for each in self._state_managers)
        fork = Fork(child, groups, num_tokens, parent if is_overwritten else None)
        self._by_child[child.request_id] = fork
        self._manager.block_pool.touch(fork.owned)
        return num_tokens

    def of(self, request: Request) -> tuple[KVCacheBlocks, int] | None:
        """The blocks that a child shares, and for how many tokens; None for any other request."""
        fork = self._by_child.get(request.request_id)
        return None if fork is None else (KVCacheBlocks(fork.blocks), fork.num_tokens)

    def release(self, request_id: str) -> bool:
        """Give back the references of a child that is admitted, or was aborted; return whether it had any."""
        fork = self._by_child.pop(request_id, None)
        if fork is None:
            return False
        # The last block is evicted first.
        self._free(fork.owned[::-1])
        return True

    def release_admitted(self, scheduled: KeysView[str]) -> None:
        """Give back the references of the children that are among the ``scheduled`` requests."""
        for child in self.children & scheduled:
            self.release(child)

    def release_one_for(self, request_id: str) -> bool:
        """Give back the references of the child that was spawned last.

        That child finds its context in the prefix cache, or computes it. The child for which blocks are allocated comes
        last: its own fork keeps its parent from giving up those blocks, and this attempt has been made with them.

        Returns:
            Whether another attempt to allocate is worth it.
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

    def keep_states(self) -> None:
        """Copy the states that are overwritten in this step, before upstream takes the copies that it begins with.

        A child that is admitted in this step has its own copy made, from the same state.
        """
        overwritten: dict[Request, list[Fork]] = {}
        for fork in self._by_child.values() if self.has_states else ():
            writer = fork.writer
            if writer is not None and writer.status == RequestStatus.RUNNING != fork.child.status:
                overwritten.setdefault(writer, []).append(fork)
        for forks in overwritten.values():
            self._keep_states_of(forks)

    @property
    def held(self) -> dict[str, list[int]]:
        """The ids of the blocks of each fork, by child."""
        return {f"fork of {name}": [block.block_id for block in fork.owned] for name, fork in self._by_child.items()}

    def _num_forked(self, parent: Request, child: Request, num_shared: int) -> int:
        """How many tokens a fork covers."""
        if not self.has_states:
            return min(num_written(parent), num_shared)
        # A step in flight has changed the state before the child begins, and there is none before its tokens.
        num_tokens: int = parent.num_computed_tokens
        return num_tokens if num_tokens <= num_shared and num_tokens < child.num_tokens else 0

    def _groups_after(self, parent: Request, num_tokens: int) -> tuple[list[KVCacheBlock], ...] | None:
        tables = ((each, each.req_to_blocks) for each in self._manager.coordinator.single_type_managers)
        groups = [blocks_after(each, table.get(parent.request_id, ()), num_tokens) for each, table in tables]
        found = tuple(group for group in groups if group is not None)
        return found if len(found) == len(groups) else None

    def _keep_states_of(self, forks: list[Fork]) -> None:
        """Give forks of the same state a copy of it; release them if there is no block for the copy."""
        if self._manager.block_pool.get_num_free_blocks() < len(self._state_managers):
            for fork in forks:
                self.release(fork.child.request_id)
            return
        for manager in self._state_managers:
            if forks[0].num_tokens % manager.block_size:
                self._keep_state(manager, forks)
        for fork in forks:
            self._by_child[fork.child.request_id] = replace(fork, writer=None)

    def _keep_state(self, manager: MambaManager, forks: list[Fork]) -> None:
        group, pool = manager.kv_cache_group_id, self._manager.block_pool
        source = forks[0].blocks[group][-1]
        (kept,) = pool.get_new_blocks(1)
        for fork in forks:
            fork.blocks[group][-1] = kept
        # The copying holds a reference to each of both blocks; for the source it is one of the forks'.
        kept.ref_cnt += len(forks)
        self._free([source] * (len(forks) - 1))
        copy_before_step(manager, source, kept)
