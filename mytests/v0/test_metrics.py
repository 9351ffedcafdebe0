# SPDX-License-Identifier: Apache-2.0
"""V0's logger of metrics; `mytests/rules/test_metrics.py` has what Prometheus and the log are told."""

import dataclasses
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mytests.harness.measured import LABELS, measured, told, unregister
from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine, plan
from vllm.engine.hook_metrics import HookStatLogger
from vllm.engine.llm_engine import LLMEngine

SWAPPING = dataclasses.replace(SYNC_HOOKS, sync_resume="manual", blocked_kv_policy="swap")


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    """No engine before has left any."""
    unregister()
    yield
    unregister()


def test_kv_in_swap_space_is_not_held_on_the_device() -> None:
    """Evictions are counted by means."""
    engine, log = measured(SWAPPING, num_blocks=16, num_cpu_blocks=16, max_model_len=32)
    group = engine.add(prompt="p" * 8)
    engine.run_until(lambda: len(engine.scheduler.blocked) == 1, plan(r="."))
    assert engine.scheduler.evictor.evict_one([group], 2)
    log()
    assert (told("blocked_kv_evictions_total", means="swap"), told("blocked_cache_usage_perc")) == (1, 0)


def test_a_line_is_logged_once_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    """Not before."""
    engine = SurgicalEngine(SWAPPING)
    logger: Any = HookStatLogger(1e9, LABELS, [engine.scheduler])
    engine.add()
    engine.run_until(lambda: len(engine.scheduler.blocked) == 1, plan(r="."))
    with caplog.at_level(logging.INFO, logger="vllm.engine.hook_metrics"):
        logger.log(SimpleNamespace(now=0.0))
    assert "Blocked" not in caplog.text


def test_it_has_nothing_to_say_of_itself() -> None:
    """Upstream asks each logger for the configuration of the cache."""
    config: Any = None
    HookStatLogger(0, LABELS, [SurgicalEngine().scheduler]).info("cache_config", config)
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
