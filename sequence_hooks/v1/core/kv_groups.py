# SPDX-License-Identifier: Apache-2.0
"""The groups of layers that have a block table each: what a sequence needs of another's tables to continue after it.

full attention    │ b0 │ b1 │ b2 │ b3… │      all blocks of the tokens
window            │ -- │ -- │ b7 │ b8… │      those that the next token sees; the others are upstream's null block
state             │ -- │ -- │ -- │ s3… │      one block, with the state after the last token, and after no other
"""

from collections.abc import Sequence

from sequence_hooks.config.refusals import layers_not_injected, not_causal, not_injected, not_shared, refused
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import MambaManager, SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    MambaSpec,
    SlidingWindowSpec,
)

_SHAREABLE = (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec, MambaSpec)
"""Latent attention and attention sinks are among them: upstream derives their specifications from these."""


def check_kv_groups(config: KVCacheConfig, injects_kv: bool) -> None:
    """Raise a `ValueError` for layers whose KV or state a child cannot share, or a parent not be given."""
    for group in config.kv_cache_groups:
        spec = group.kv_cache_spec
        kind = type(spec).__name__
        if not isinstance(spec, _SHAREABLE):
            raise ValueError(not_shared(kind, group.layer_names[0]))
        if getattr(spec, "non_causal", False):
            raise ValueError(not_causal(group.layer_names[0]))
        if injects_kv and not isinstance(spec, FullAttentionSpec):
            raise ValueError(layers_not_injected(kind, group.layer_names[0]))
    if injects_kv and len(config.kv_cache_groups) > 1:
        raise ValueError(not_injected(f"a model whose layers have {len(config.kv_cache_groups)} block tables"))


def check_connected(config: KVCacheConfig) -> None:
    """Raise a `ValueError` for layers of which no connector is known to save and load what trees have."""
    for group in config.kv_cache_groups:
        kind = type(group.kv_cache_spec).__name__
        if not isinstance(group.kv_cache_spec, FullAttentionSpec) or len(config.kv_cache_groups) > 1:
            way_out = (
                "leave kv_transfer_config and kv_offloading_size out, or use a model with full attention in all layers"
            )
            layer = group.layer_names[0]
            raise ValueError(refused(f"a KV connector and layers of the kind {kind}, as {layer} is", way_out))


def state_managers(manager: KVCacheManager) -> list[MambaManager]:
    """The managers of the groups whose layers have a state, which each token overwrites."""
    managers = manager.coordinator.single_type_managers
    return [each for each in managers if isinstance(each, MambaManager)]


def waits_for_state(manager: KVCacheManager, found: KVCacheBlocks | None) -> bool:
    """Whether upstream has no slots for a request in this step, however many are free: a state that the prefix cache
    has ``found`` for it is only written in this step."""
    tables = [] if found is None else [(each, found.blocks[each.kv_cache_group_id]) for each in state_managers(manager)]
    return any(blocks and blocks[-1].block_hash in each.cached_blocks_this_step for each, blocks in tables)


def blocks_after(
    manager: SingleTypeKVCacheManager, table: Sequence[KVCacheBlock], num_tokens: int
) -> list[KVCacheBlock] | None:
    """The blocks of a table that are needed to continue after its first ``num_tokens``, of which there is at least one.

    Returns:
        With upstream's null block in place of those that are not needed; None if the table lacks one that is.
    """
    size = manager.block_size
    num_skipped = manager.get_num_skipped_tokens(num_tokens) // size
    needed = list(table[num_skipped : -(-num_tokens // size)])
    if any(block.is_null for block in needed):
        return None
    return [manager.block_pool.null_block] * num_skipped + needed


def copy_before_step(manager: SingleTypeKVCacheManager, source: KVCacheBlock, copy: KVCacheBlock) -> None:
    """Let workers copy a block before they compute the step that is being scheduled.

    Upstream gives back one reference to each of both blocks once it is done.
    """
    manager._pending_cow_copies.append((source, copy))


def cut_hit(
    manager: KVCacheManager, hit: tuple[KVCacheBlocks, int, int, bool], num_tokens: int, block_size: int
) -> tuple[KVCacheBlocks, int, int, bool]:
    """The part of a ``hit`` of the prefix cache that is for at most the first ``num_tokens`` of a request.

    Args:
        block_size: Tokens per block, of all groups together.
    """
    blocks, num_found, *others = hit
    if num_found <= num_tokens:
        return hit
    num_kept = num_tokens // block_size * block_size
    managers = manager.coordinator.single_type_managers
    pairs = zip(managers, blocks.blocks, strict=True)
    groups = [blocks_after(each, table, num_kept) if num_kept else None for each, table in pairs]
    found = [group for group in groups if group is not None]
    if len(found) < len(managers):
        # A window's blocks before the cut are not among those that were found.
        return manager.empty_kv_cache_blocks, 0, *others  # type: ignore[return-value]
    return KVCacheBlocks(tuple(found)), num_kept, *others  # type: ignore[return-value]
