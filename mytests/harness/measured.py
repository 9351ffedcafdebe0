# SPDX-License-Identifier: Apache-2.0
"""What Prometheus and the log are told of a surgical engine, V0's or V1's."""

import time
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

from prometheus_client import REGISTRY

from mytests.harness.installed import IS_V1
from mytests.harness.surgical import SpecialKwargs, SurgicalEngine

if IS_V1:
    from mytests.harness.v1.configuration import base_config
    from sequence_hooks.v1.frontend.stat_logger import HookStatLogger

    LABELS = {"model_name": str(base_config().model_config.served_model_name), "engine": "0"}
else:
    from vllm.engine.hook_metrics import HookStatLogger

    LABELS = {"model_name": "m"}


def unregister() -> None:
    """Unregister vLLM's metrics, as upstream does for each engine before ours are added."""
    for collector in list(REGISTRY._collector_to_names):
        if "vllm" in getattr(collector, "_name", ""):
            REGISTRY.unregister(collector)


def told(name: str, **labels: str) -> float | None:
    """The value of a metric in the registry."""
    return REGISTRY.get_sample_value(f"vllm:{name}", LABELS | labels)


def measured(hooks: SpecialKwargs, **sizes: Any) -> tuple[SurgicalEngine, Callable[[], None]]:
    """An engine whose metrics are in the registry, and what lets its logger speak, as at the end of an interval."""
    engine = SurgicalEngine(hooks, **sizes)
    if IS_V1:
        logger: Any = HookStatLogger(base_config(), [0], engine.output_processor, logs=True)
        engine.stat_logger = logger
        return engine, logger.log
    logger, seconds = HookStatLogger(0, LABELS, [engine.scheduler]), count(time.time() + 1)
    return engine, lambda: logger.log(SimpleNamespace(now=next(seconds)))
