# SPDX-License-Identifier: Apache-2.0
"""Metrics of hooks: which of the scheduler's counts Prometheus gets, and the line in the log."""

import dataclasses
import logging
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from mytests.harness.handlers import FORK, Malformed
from mytests.harness.surgical import SYNC_HOOKS, SpecialKwargs, SurgicalEngine, plan
from vllm.engine.hook_metrics import HookStatLogger
from vllm.engine.llm_engine import LLMEngine

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    """Unregisters vLLM's metrics, as upstream's do for each engine before ours are added."""
    _unregister()
    yield
    _unregister()


def _unregister() -> None:
    for collector in list(REGISTRY._collector_to_names):
        if "vllm" in getattr(collector, "_name", ""):
            REGISTRY.unregister(collector)


def told(name: str, **labels: str) -> float | None:
    """The value of a metric in the registry."""
    return REGISTRY.get_sample_value(f"vllm:{name}", {"model_name": "m", **labels})


def logger_of(engine: SurgicalEngine, interval: float = 0) -> HookStatLogger:
    return HookStatLogger(interval, {"model_name": "m"}, [engine.scheduler])


def log(logger: HookStatLogger) -> None:
    """Logs as the engine does at the end of a step."""
    stats: Any = SimpleNamespace(now=time.time() + 1)
    logger.log(stats)


class TestMetrics:
    def test_joins_are_counted(self) -> None:
        """A join is counted once, however often the logger is called."""
        engine = SurgicalEngine(SYNC_HOOKS)
        logger = logger_of(engine)
        engine.add(prompt="prompt")
        engine.run(plan(r="!!.z", r_child_0="ABCDE", r_child_1="XYZ"))
        log(logger)
        log(logger)
        names = ("children_spawned", "children_failed", "merged_tokens", "resume_prefill_tokens", "resume_saved_tokens")
        assert [told(f"{name}_total") for name in names] == [2, 0, 9, 10, 8]
        assert told("promises_refused_total", limit="max_children") == 0
        assert (told("request_blocked_time_seconds_count"), len(engine.scheduler.trees.stats.blocked_times)) == (1, 0)
        assert told("num_requests_blocked") == 0

    def test_limits_are_counted(self) -> None:
        """Each promise that is refused, and each tree once, by the limit."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, max_children=1, max_tree_tokens=9))
        logger = logger_of(engine)
        engine.add()
        engine.run(plan(r="!!!" + "a" * 9, r_child_0="b" * 9))
        log(logger)
        log(logger)
        assert told("promises_refused_total", limit="max_children") == 2
        assert told("trees_limited_total", limit="max_children") == 1
        assert told("trees_limited_total", limit="max_tree_tokens") == 1
        engine.assert_empty()

    def test_other_refusals_are_counted_beside_them(self) -> None:
        """What a handler finds malformed, and a hook that fails."""
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: f"{Malformed.__module__}.Malformed"}))
        logger = logger_of(engine)
        engine.add()
        engine.run(plan(r="a*b*c*d"))
        log(logger)
        assert told("promises_refused_total", limit="malformed") == 1
        assert told("promises_refused_total", limit="failed") == 2
        assert told("trees_limited_total", limit="malformed") == told("trees_limited_total", limit="failed") == 1
        engine.assert_empty()

    def test_who_is_blocked_and_what_they_hold(self) -> None:
        """Two sequences are blocked; a block that both share counts once, out of sixteen."""
        engine = SurgicalEngine(MANUAL, block_size=4, num_blocks=16)
        logger = logger_of(engine)
        engine.add(prompt="p" * 8)
        engine.run_until(lambda: len(engine.scheduler.blocked) == 2, plan(r="!.y", r_child_0=".z"))
        log(logger)
        tables = [engine.block_table(group) for group in engine.scheduler.blocked]
        assert told("num_requests_blocked") == 2
        assert told("blocked_cache_usage_perc") == len(set(tables[0]) | set(tables[1])) / 16

    @pytest.mark.parametrize(("policy", "means", "held"), [("discard", "discard", 0), ("swap", "swap", 0)])
    def test_what_was_given_up(self, policy: Any, means: str, held: float) -> None:
        """Evictions are counted by means; KV in swap space does not count as held on the device."""
        hooks = dataclasses.replace(MANUAL, blocked_kv_policy=policy)
        engine = SurgicalEngine(hooks, block_size=4, num_blocks=16, num_cpu_blocks=16, max_model_len=32)
        logger = logger_of(engine)
        group = engine.add(prompt="p" * 8)
        engine.run_until(lambda: len(engine.scheduler.blocked) == 1, plan(r="."))
        assert engine.scheduler.evictor.evict_one([group], 2)
        log(logger)
        assert told("blocked_kv_evictions_total", means=means) == 1
        assert told("blocked_cache_usage_perc") == held


class TestLog:
    @pytest.mark.parametrize(("is_blocked", "interval"), [(True, 0), (False, 0), (True, 99)])
    def test_a_line_names_the_blocked(
        self, is_blocked: bool, interval: float, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is logged once per interval, and only if a sequence is blocked."""
        engine = SurgicalEngine(MANUAL, block_size=4, num_blocks=16)
        logger = logger_of(engine, interval)
        if is_blocked:
            engine.add(prompt="p" * 8)
            engine.run_until(lambda: len(engine.scheduler.blocked) == 1, plan(r="."))
        with caplog.at_level(logging.INFO, logger="vllm.engine.hook_metrics"):
            log(logger)
        line = "Blocked: 1 reqs, KV cache usage of the blocked: 12.5%"
        assert (line in caplog.text) is (is_blocked and interval == 0)


def test_it_has_nothing_to_say_of_itself() -> None:
    """Upstream asks each logger for the configuration of the cache."""
    config: Any = None
    logger_of(SurgicalEngine()).info("cache_config", config)
    assert told("cache_config_info") is None


def test_an_engine_that_logs_has_it() -> None:
    """It gets upstream's interval and label."""
    engine: Any = LLMEngine.__new__(LLMEngine)
    engine.log_stats, engine.scheduler = True, [SurgicalEngine().scheduler]
    engine.stat_loggers = {"prometheus": SimpleNamespace(local_interval=5)}
    engine.model_config = SimpleNamespace(served_model_name="m")
    engine._add_hook_metrics()
    assert engine.stat_loggers["hooks"].local_interval == 5
    assert told("num_requests_blocked") == 0
