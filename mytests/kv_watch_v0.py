# SPDX-License-Identifier: Apache-2.0
"""`mytests.kv_watch` on the V0 fork."""

from typing import Any

import torch

from mytests.fuzz_history import BLOCK_SIZE
from mytests.fuzz_on_v0 import V0Driver
from mytests.injection_oracle import KV, Loss
from mytests.kv_watch import NO_HOOK, Watcher
from vllm.engine.llm_engine import LLMEngine
from vllm.sequence import Sequence, SequenceGroup
from vllm.utils import Device
from vllm.worker.kv_slots import Places, open_cache, read


def watch_v0(driver: V0Driver, watcher: Watcher) -> None:
    """See `mytests.kv_watch.watch`."""
    (scheduler,) = driver.engine.scheduler
    recompute_from, free_seq = scheduler.pressure._recompute_from, scheduler.free_seq

    def note_loss(group: SequenceGroup, num_kept: int) -> None:
        seq = group.first_seq
        length, num_joins = seq.get_len(), len(seq.branch.joins) if hasattr(seq, "branch") else 0
        recompute_from(group, num_kept)
        watcher.lost(_name(seq), Loss(length, num_joins, seq.get_num_computed_tokens()))

    def note_end(seq: Sequence) -> None:
        table = scheduler.block_manager.block_tables.get(seq.seq_id)
        if table is not None and seq.is_finished():
            blocks = list(table.physical_block_ids)
            watcher.ended(_name(seq), blocks, read_kv(driver.engine, blocks, seq.get_num_computed_tokens()))
        free_seq(seq)

    scheduler.pressure._recompute_from, scheduler.free_seq = note_loss, note_end


def _name(seq: Sequence) -> str:
    return seq.branch.request_id if hasattr(seq, "branch") else NO_HOOK


def read_kv(engine: LLMEngine, blocks: list[int], num_tokens: int) -> list[KV]:
    """Each layer's KV of the first ``num_tokens`` of a block table."""
    indices = torch.arange(num_tokens)
    places = Places(torch.tensor(blocks)[indices // BLOCK_SIZE], indices % BLOCK_SIZE)
    layers = engine.model_executor.driver_worker.worker.compilation_config.static_forward_context.values()
    caches = [open_cache(attention, attention.kv_cache[0]) for attention in layers]
    return [KV(read(cache.keys, places), read(cache.values, places)) for cache in caches]


def cached_blocks_v0(driver: V0Driver) -> set[int]:
    """See `mytests.kv_watch.cached_blocks`."""
    (scheduler,) = driver.engine.scheduler
    return set(scheduler.block_manager.block_allocator._allocators[Device.GPU]._cached_blocks.values())


def watch_cache_hits_v0(driver: V0Driver) -> list[int]:
    """See `mytests.kv_watch.watch_cache_hits`; one request is run at a time, in one step."""
    executor: Any = driver.engine.model_executor
    found: list[int] = []
    execute_model = executor.execute_model

    def watched(execute_model_req: Any) -> Any:
        found.append(len(execute_model_req.seq_group_metadata_list[0].computed_block_nums) * BLOCK_SIZE)
        return execute_model(execute_model_req=execute_model_req)

    executor.execute_model = watched
    return found
