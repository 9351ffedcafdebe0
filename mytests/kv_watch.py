# SPDX-License-Identifier: Apache-2.0
"""Watches an engine's KV for `mytests.injection_runs`: which sequences give it up, and what it is at their ends."""

from typing import Any, Protocol

from mytests.injection_oracle import KV, Loss
from mytests.which import IS_V1

NO_HOOK = ""
"""Stands for the request id of a sequence that never met a hook token."""


class Watcher(Protocol):
    """What is told of an engine's KV."""

    def lost(self, name: str, loss: Loss) -> None:
        """A sequence has given up KV."""

    def ended(self, name: str, blocks: list[int], layers: list[KV]) -> None:
        """A sequence has ended, with this KV in these blocks."""


def watch(driver: Any, watcher: Watcher) -> None:
    """Tell ``watcher`` of the KV of the engine that a `Driver` drives."""
    if IS_V1:
        from mytests.v1.kv_watch import watch_v1

        watch_v1(driver, watcher)
    else:
        from mytests.kv_watch_v0 import watch_v0

        watch_v0(driver, watcher)


def cached_blocks(driver: Any) -> set[int]:
    """All blocks that a request can find in the prefix cache of an engine."""
    if IS_V1:
        blocks = driver.scheduler.kv_cache_manager.block_pool.blocks
        return {block.block_id for block in blocks if block.block_hash is not None}
    from mytests.kv_watch_v0 import cached_blocks_v0

    return cached_blocks_v0(driver)


def watch_cache_hits(driver: Any) -> list[int]:
    """A list that gets the number of tokens that each request finds in the prefix cache from now on."""
    if IS_V1:
        from mytests.v1.kv_watch import watch_cache_hits_v1

        return watch_cache_hits_v1(driver)
    from mytests.kv_watch_v0 import watch_cache_hits_v0

    return watch_cache_hits_v0(driver)
