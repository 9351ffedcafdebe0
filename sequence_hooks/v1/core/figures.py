# SPDX-License-Identifier: Apache-2.0
"""Figures for metrics that only the engine's core knows. They are told only when they have changed."""

import time
from collections.abc import Callable, Collection, Iterable

from sequence_hooks.v1.core.pressure import Pressure
from sequence_hooks.v1.wire import Figures
from vllm.v1.core.kv_cache_manager import KVCacheManager

_INTERVAL = 1.0
"""Seconds between two counts of the blocks that BLOCKED sequences hold: each block has to be looked at."""


class FigureCounter:
    """Counts what BLOCKED sequences hold, and what was given up.

    Args:
        blocked: The BLOCKED requests, by id.
        goes_on: Whether another step follows. If not, these figures stay for as long as all wait for callers.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        blocked: Collection[str],
        manager: KVCacheManager,
        pressure: Pressure,
        goes_on: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blocked = blocked
        self._manager = manager
        self._pressure = pressure
        self._goes_on = goes_on
        self._clock = clock
        self._counted = float("-inf")
        self._counted_for: tuple[frozenset[str], int] = frozenset(), 0
        self._told = Figures(0, 0.0, 0)
        """With all evictions so far."""

    def news(self) -> Figures | None:
        """The figures, with the evictions since the last ones; None if nothing has changed."""
        num_discarded = self._pressure.evictions["discard"]
        held = self._share(num_discarded)
        told, self._told = self._told, Figures(len(self._blocked), held, num_discarded)
        if told == self._told:
            return None
        return Figures(len(self._blocked), held, num_discarded - told.num_discarded)

    def _share(self, num_discarded: int) -> float:
        """The share of the KV cache that BLOCKED sequences hold; a shared block counts once."""
        if not self._blocked:
            return 0.0
        now = self._clock()
        if now - self._counted < _INTERVAL and self._goes_on():
            return self._told.held
        counted_for = frozenset(self._blocked), num_discarded
        if counted_for == self._counted_for:
            return self._told.held
        self._counted, self._counted_for = now, counted_for
        pool = self._manager.block_pool
        return len(set(self._block_ids())) / (pool.num_gpu_blocks - 1)

    def _block_ids(self) -> Iterable[int]:
        for each in self._manager.coordinator.single_type_managers:
            for name in self._blocked:
                yield from (block.block_id for block in each.req_to_blocks.get(name, ()))
