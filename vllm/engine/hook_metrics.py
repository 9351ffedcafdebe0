# SPDX-License-Identifier: Apache-2.0
"""Metrics of sequence hooks, in upstream's Prometheus registry, and a line in the log while sequences are BLOCKED.

Import this where upstream imports its own metrics: prometheus_client reads its environment when it is imported.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from vllm.core.hook_scheduler import HookScheduler
from vllm.engine.metrics import build_1_2_5_buckets, local_interval_elapsed
from vllm.engine.metrics_types import StatLoggerBase, Stats, SupportsMetricsInfo
from vllm.logger import init_logger

logger = init_logger(__name__)

_COUNTERS = {
    "num_spawned": ("vllm:children_spawned_total", "Number of children spawned."),
    "num_failed": ("vllm:children_failed_total", "Number of children that failed, and were left out of the join."),
    "num_merged": ("vllm:merged_tokens_total", "Number of tokens merged into parents."),
    "num_prefilled": ("vllm:resume_prefill_tokens_total", "Number of tokens to prefill at resumes."),
    "num_saved": (
        "vllm:resume_saved_tokens_total",
        "Number of context tokens whose KV was kept or injected at resumes.",
    ),
}
"""Names and descriptions, by the field of `HookStats`."""

_SECONDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, *map(float, build_1_2_5_buckets(1000))]


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
        self._schedulers, self._labels = schedulers, dict(labels)
        self._seen: dict[tuple[str, ...], int] = {}
        names = list(labels)
        self._blocked = _labelled(
            Gauge(
                "vllm:num_requests_blocked",
                "Number of sequences that wait for children or a caller.",
                names,
                multiprocess_mode="sum",
            ),
            labels,
        )
        self._held = _labelled(
            Gauge(
                "vllm:blocked_cache_usage_perc",
                "KV-cache usage of BLOCKED sequences. 1 means 100 percent usage.",
                names,
                multiprocess_mode="sum",
            ),
            labels,
        )
        self._seconds = _labelled(
            Histogram(
                "vllm:request_blocked_time_seconds",
                "Histogram of time that a sequence was BLOCKED.",
                names,
                buckets=_SECONDS,
            ),
            labels,
        )
        self._counters = {
            field: _labelled(Counter(name, text, names), labels) for field, (name, text) in _COUNTERS.items()
        }
        self._evictions = Counter(
            "vllm:blocked_kv_evictions_total",
            "Number of times that a sequence set aside gave up its KV.",
            [*names, "means"],
        )

    def log(self, stats: Stats) -> None:
        """Update all metrics."""
        num_blocked = sum(len(scheduler.blocked) for scheduler in self._schedulers)
        self._blocked.set(num_blocked)
        for field, counter in self._counters.items():
            counter.inc(self._new((field,), sum(getattr(each.trees.stats, field) for each in self._schedulers)))
        for means in ("swap", "discard"):
            total = sum(each.pressure.evictions[means] for each in self._schedulers)
            self._evictions.labels(**self._labels, means=means).inc(self._new(("evictions", means), total))
        for scheduler in self._schedulers:
            while scheduler.trees.stats.blocked_times:
                self._seconds.observe(scheduler.trees.stats.blocked_times.popleft())
        if local_interval_elapsed(stats.now, self.last_local_log, self.local_interval):
            self.last_local_log = stats.now
            self._log_held(num_blocked)

    def info(self, type: str, obj: SupportsMetricsInfo) -> None:
        """Do nothing: hooks have no info metric."""

    def _new(self, key: tuple[str, ...], total: int) -> int:
        """How much ``total`` has grown since the last call for ``key``."""
        new, self._seen[key] = total - self._seen.get(key, 0), total
        return new

    def _log_held(self, num_blocked: int) -> None:
        held = sum(scheduler.num_blocks_of_blocked() for scheduler in self._schedulers)
        share = held / max(1, sum(each.block_manager.num_total_gpu_blocks for each in self._schedulers))
        self._held.set(share)
        if num_blocked:
            logger.info("Blocked: %d reqs, KV cache usage of the blocked: %.1f%%", num_blocked, 100 * share)


def _labelled(metric: Any, labels: Mapping[str, str]) -> Any:
    return metric.labels(**labels) if labels else metric
