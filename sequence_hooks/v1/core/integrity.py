# SPDX-License-Identifier: Apache-2.0
"""Checks that a V1 scheduler's queues and blocks add up."""

from collections.abc import Collection, Mapping, Sequence

from sequence_hooks.admission.order import AdmissionOrder
from sequence_hooks.tree.integrity import IntegrityError, Pool, report_queues
from sequence_hooks.tree.integrity import check_queues as check_places
from sequence_hooks.tree.manager import DependencyManager
from sequence_hooks.v1.core.kv_manager import TreeKVManager
from sequence_hooks.v1.core.sequence import V1Branch, V1Sequence
from sequence_hooks.v1.releases.installed import ReleaseScheduler
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import Request


def check_queues(scheduler: ReleaseScheduler, blocked: Collection[str], trees: DependencyManager[V1Sequence]) -> None:
    """Raise an `IntegrityError` unless every unfinished request is in exactly one place, and ``trees`` agree."""
    queues = {
        "waiting": [request.request_id for request in scheduler.waiting],
        "waiting with KV": [request.request_id for request in scheduler.waiting_with_kv],
        "running": [request.request_id for request in scheduler.running],
        "blocked": list(blocked),
    }
    check_places(queues)
    queued = {name for queue in queues.values() for name in queue}
    # A connector may still save KV of a finished one.
    unfinished = {name for name, request in scheduler.requests.items() if not request.is_finished()}
    if strays := queued ^ unfinished:
        raise IntegrityError(
            f"{sorted(strays)} are in a queue or in the map of requests, not in both\n{report_queues(queues)}"
        )
    of_trees = {branch.request_id for branch in trees.branches if branch.phase == "blocked"}
    if strays := of_trees ^ set(blocked):
        raise IntegrityError(
            f"{sorted(strays)} are BLOCKED in the scheduler or in the trees, not in both\n{trees.report()}"
        )


def check_shares(
    order: AdmissionOrder[Request], running: Collection[Request], branches: Mapping[str, V1Branch]
) -> None:
    """Raise an `IntegrityError` unless the ``order`` of trees knows which of their sequences are ``running``."""
    of_trees = {each.request_id for each in running if each.request_id in branches}
    if strays := of_trees ^ {each.request_id for each in order.running}:
        raise IntegrityError(f"{sorted(strays)} run according to the scheduler or to the shares of trees, not to both")


def check_blocks(manager: KVCacheManager, held: Mapping[str, Sequence[int]]) -> None:
    """Raise an `IntegrityError` unless free and ``held`` blocks add up to the pool, and all owners are known."""
    pool = manager.block_pool
    owners = {block.block_id: block.ref_cnt for block in pool.blocks}
    # The first block is upstream's null block, which no request can have.
    Pool("KV cache", pool.num_gpu_blocks - 1, pool.get_num_free_blocks(), held, owners).check()


def held_blocks(manager: TreeKVManager) -> dict[str, list[int]]:
    """The ids of the blocks that each holder has."""
    held = manager.forks.held | manager.kept.held | manager.deferred
    for each in manager.coordinator.single_type_managers:
        for name, blocks in each.req_to_blocks.items():
            # The blocks of glue are its owner's.
            if name not in manager.injection.glue:
                ids = [block.block_id for block in blocks if not block.is_null]
                held[f"{name}, group {each.kv_cache_group_id}"] = ids
    return held
