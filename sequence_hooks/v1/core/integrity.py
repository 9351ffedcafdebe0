# SPDX-License-Identifier: Apache-2.0
"""Checks that a V1 scheduler's queues and blocks add up."""

from collections.abc import Collection

from sequence_hooks.tree.integrity import IntegrityError, Pool, check_queues, report_queues
from sequence_hooks.v1.core.forks import Forks
from sequence_hooks.v1.core.kept import KeptKV
from sequence_hooks.v1.releases.installed import ReleaseScheduler
from vllm.v1.core.kv_cache_manager import KVCacheManager


def check_queues_of(scheduler: ReleaseScheduler, blocked: Collection[str]) -> None:
    """Raise an `IntegrityError` unless every unfinished request is in exactly one place."""
    queues = {
        "waiting": [request.request_id for request in scheduler.waiting],
        "waiting first": [request.request_id for request in scheduler.waiting_first],
        "running": [request.request_id for request in scheduler.running],
        "blocked": list(blocked),
    }
    check_queues(queues)
    queued = {name for queue in queues.values() for name in queue}
    if strays := queued ^ set(scheduler.requests):
        raise IntegrityError(
            f"{sorted(strays)} are in a queue or in the map of requests, not in both\n{report_queues(queues)}"
        )


def check_blocks(manager: KVCacheManager, forks: Forks, kept: KeptKV, glue: Collection[str]) -> None:
    """Raise an `IntegrityError` unless free and held blocks add up to the pool, and all owners are known.

    Args:
        glue: The requests whose blocks are others'.
    """
    pool = manager.block_pool
    held = forks.held | kept.held
    for each in manager.coordinator.single_type_managers:
        for name, blocks in each.req_to_blocks.items():
            if name in glue:
                continue
            held[f"{name}, group {each.kv_cache_group_id}"] = [block.block_id for block in blocks if not block.is_null]
    owners = {block.block_id: block.ref_cnt for block in pool.blocks}
    # The first block is upstream's null block, which nobody can have.
    Pool("KV cache", pool.num_gpu_blocks - 1, pool.get_num_free_blocks(), held, owners).check()
