# SPDX-License-Identifier: Apache-2.0
"""Metrics of sequence hooks beside upstream's, and a line in the log while sequences are BLOCKED."""

from typing import Any

from sequence_hooks.serving.metrics import CounterDelta, EngineMetrics, HookMetrics
from sequence_hooks.v1.frontend.output_processor import HookOutputProcessor
from sequence_hooks.v1.wire import CoreHookStats
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.metrics.loggers import AggregateStatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

# Below upstream's logger, which has the handlers.
logger = init_logger(f"vllm.{__name__}")


class HookStatLogger(AggregateStatLoggerBase):
    """Counts what the processor has told since the last step. Upstream calls `record` after each step of an engine.

    Args:
        logs: Whether to log a line; of several servers none knows all BLOCKED sequences.
    """

    def __init__(
        self, vllm_config: VllmConfig, engine_indexes: list[int], processor: HookOutputProcessor, logs: bool
    ) -> None:
        self._processor = processor
        self._logs = logs
        self._delta = CounterDelta()
        self._latest: dict[int, CoreHookStats] = {}
        self._logged: dict[int, tuple[int, float]] = {}
        # As upstream's own: the labels, and that those of an engine come from whoever was told them last.
        metrics = HookMetrics(["model_name", "engine"], gauge_mode="mostrecent")
        name = str(vllm_config.model_config.served_model_name)
        labels = {index: {"model_name": name, "engine": str(index)} for index in engine_indexes}
        self._engines = {index: EngineMetrics(metrics, of_engine) for index, of_engine in labels.items()}
        for engine in self._engines.values():
            engine.add_evictions("discard", 0)

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Count what has happened to trees of the engine ``engine_idx``."""
        metrics = self._engines[engine_idx]
        metrics.count(self._delta, [self._processor.trees.stats])
        latest = self._processor.take_core_stats()
        if latest is not None:
            self._latest[engine_idx] = latest
            metrics.blocked.set(latest.num_blocked)
            metrics.held.set(latest.held)
            metrics.add_evictions("discard", latest.num_discarded)
            metrics.taken_back.inc(latest.num_taken_back)

    def log(self) -> None:
        """Log how many sequences are BLOCKED, if any is and if that has changed: they may wait for callers for long."""
        for index, latest in self._latest.items():
            blocked = (latest.num_blocked, latest.held)
            is_new, self._logged[index] = self._logged.get(index) != blocked, blocked
            if self._logs and latest.num_blocked and is_new:
                logger.info(
                    "Engine %03d: Blocked: %d reqs, KV cache usage of the blocked: %.1f%%",
                    index,
                    latest.num_blocked,
                    100 * latest.held,
                )

    def log_engine_initialized(self) -> None:
        """Do nothing: hooks have no info metric."""
