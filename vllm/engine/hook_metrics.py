# SPDX-License-Identifier: Apache-2.0
"""Metrics of sequence hooks, and a line in the log while sequences are BLOCKED.

Import this where upstream imports its own metrics: prometheus_client reads its environment when it is imported.
"""

import time
from collections.abc import Mapping, Sequence

from sequence_hooks.serving.metrics import CounterDelta, EngineMetrics, HookMetrics
from vllm.core.hook_scheduler import HookScheduler
from vllm.engine.metrics import local_interval_elapsed
from vllm.engine.metrics_types import StatLoggerBase, Stats, SupportsMetricsInfo
from vllm.logger import init_logger

logger = init_logger(__name__)


class HookStatLogger(StatLoggerBase):
    """Reads the schedulers' counts at each call, and the KV-cache usage of BLOCKED sequences once per interval."""

    def __init__(self, local_interval: float, labels: Mapping[str, str], schedulers: Sequence[HookScheduler]) -> None:
        """
        Args:
            local_interval: Seconds between two lines in the log.
            labels: Names and values of the labels of all metrics.
        """
        super().__init__(local_interval, None)
        self.last_local_log: float = time.time()
        self._schedulers = schedulers
        self._delta = CounterDelta()
        self._logged = (0, 0.0)
        self._metrics = EngineMetrics(HookMetrics(list(labels), gauge_mode="sum"), labels)

    def log(self, stats: Stats) -> None:
        """Update all metrics."""
        num_blocked = sum(len(scheduler.blocked) for scheduler in self._schedulers)
        self._metrics.blocked.set(num_blocked)
        self._metrics.count(self._delta, [each.trees.stats for each in self._schedulers])
        for means in ("swap", "discard"):
            total = sum(each.evictor.evictions[means] for each in self._schedulers)
            self._metrics.add_evictions(means, self._delta.of(means, total))
        if local_interval_elapsed(stats.now, self.last_local_log, self.local_interval):
            self.last_local_log = stats.now
            self._log_held(num_blocked)

    def info(self, type: str, obj: SupportsMetricsInfo) -> None:
        """Do nothing: hooks have no info metric."""

    def _log_held(self, num_blocked: int) -> None:
        held = sum(scheduler.num_blocks_of_blocked() for scheduler in self._schedulers)
        share = held / max(1, sum(each.block_manager.num_total_gpu_blocks for each in self._schedulers))
        self._metrics.held.set(share)
        # They may wait for callers for long.
        is_new, self._logged = self._logged != (num_blocked, share), (num_blocked, share)
        if num_blocked and is_new:
            logger.info("Blocked: %d reqs, KV cache usage of the blocked: %.1f%%", num_blocked, 100 * share)
