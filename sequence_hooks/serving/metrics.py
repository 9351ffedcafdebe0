# SPDX-License-Identifier: Apache-2.0
"""Metrics of sequence hooks in upstream's Prometheus registry, whichever engine counts. See docs/metrics.md."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from sequence_hooks.config.limits import RefusedBy
from sequence_hooks.tree.stats import HookStats

COUNTERS = {
    "num_spawned": ("vllm:children_spawned_total", "Number of children spawned."),
    "num_failed": ("vllm:children_failed_total", "Number of children that failed, and were left out of the join."),
    "num_cancelled": ("vllm:children_cancelled_total", "Number of children that a parent has gone on without."),
    "num_merged": ("vllm:merged_tokens_total", "Number of tokens merged into parents."),
    "num_prefilled": ("vllm:resume_prefill_tokens_total", "Number of tokens to prefill at resumes."),
    "num_saved": (
        "vllm:resume_saved_tokens_total",
        "Number of context tokens whose KV was kept or injected at resumes.",
    ),
}
"""Names and descriptions, by the field of `HookStats`."""

LIMIT_COUNTERS = {
    "num_refused": ("vllm:promises_refused_total", "Number of promises that were made ordinary tokens."),
    "num_limited": ("vllm:trees_limited_total", "Number of trees that have met a limit, each once per limit."),
}
"""The same for those that count by limit."""

_SECONDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]


class CounterDelta:
    """How much counters have grown since they were last looked at."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def of(self, name: str, total: int) -> int:
        """What is new in ``total`` since the last call for ``name``."""
        new, self._seen[name] = total - self._seen.get(name, 0), total
        return new


class HookMetrics:
    """The metrics, of which each engine has its own values.

    Make it after upstream's own: prometheus_client reads its environment when it is imported.

    Args:
        label_names: Of all metrics.
        gauge_mode: How the gauges of several processes add up, in terms of prometheus_client.
    """

    def __init__(self, label_names: Sequence[str], gauge_mode: Any) -> None:
        # Only an engine's environment has it.
        from prometheus_client import Counter, Gauge, Histogram

        gauge = {"labelnames": label_names, "multiprocess_mode": gauge_mode}
        self.blocked = Gauge(
            "vllm:num_requests_blocked", "Number of sequences that wait for children or a caller.", **gauge
        )
        self.held = Gauge(
            "vllm:blocked_cache_usage_perc", "KV-cache usage of BLOCKED sequences. 1 means 100 percent usage.", **gauge
        )
        self.seconds = Histogram(
            "vllm:request_blocked_time_seconds",
            "Histogram of time that a sequence was BLOCKED.",
            label_names,
            buckets=_SECONDS,
        )
        self.counters = {field: Counter(name, text, label_names) for field, (name, text) in COUNTERS.items()}
        with_limit = [*label_names, "limit"]
        self.by_limit = {field: Counter(name, text, with_limit) for field, (name, text) in LIMIT_COUNTERS.items()}
        self.evictions = Counter(
            "vllm:blocked_kv_evictions_total",
            "Number of times that a sequence set aside gave up its KV.",
            [*label_names, "means"],
        )
        self.taken_back = Counter(
            "vllm:spec_decode_taken_back_tokens_total",
            "Number of accepted tokens after one that blocked or ended its sequence.",
            label_names,
        )


class EngineMetrics:
    """The metrics of one engine."""

    def __init__(self, metrics: HookMetrics, labels: Mapping[str, str]) -> None:
        self._metrics, self._labels = metrics, dict(labels)
        self.blocked = metrics.blocked.labels(**labels)
        self.held = metrics.held.labels(**labels)
        self.taken_back = metrics.taken_back.labels(**labels)
        self._seconds = metrics.seconds.labels(**labels)
        self._counters = {field: counter.labels(**labels) for field, counter in metrics.counters.items()}
        self._by_limit = {
            (field, limit): counter.labels(**labels, limit=limit)
            for field, counter in metrics.by_limit.items()
            for limit in get_args(RefusedBy)
        }

    def count(self, delta: CounterDelta, all_stats: Sequence[HookStats]) -> None:
        """Count what trees have done since ``delta`` was looked at last, and take the times that they have measured."""
        for field, counter in self._counters.items():
            counter.inc(delta.of(field, sum(getattr(stats, field) for stats in all_stats)))
        for (field, limit), counter in self._by_limit.items():
            total = sum(getattr(stats, field)[limit] for stats in all_stats)
            counter.inc(delta.of(f"{field} by {limit}", total))
        for stats in all_stats:
            while stats.blocked_times:
                self._seconds.observe(stats.blocked_times.popleft())

    def add_evictions(self, means: str, number: int) -> None:
        """Add sequences that have given up KV by ``means``."""
        self._metrics.evictions.labels(**self._labels, means=means).inc(number)
