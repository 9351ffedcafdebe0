# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard in deploy/ asks for metrics that a server has, and shows all of ours."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from mytests.harness.v1.configuration import base_config
from sequence_hooks.v1.frontend.stat_logger import HookStatLogger
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.prometheus import unregister_vllm_metrics

DASHBOARD = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboards" / "sequence-hooks.json"
PARTS = re.compile(r"_(bucket|count|created|sum|total)$")
"""What prometheus_client makes of one histogram or counter."""

Labels = dict[str, set[str]]
"""Names of labels, by the name of a sample."""


@pytest.fixture
def upstreams() -> Iterator[Labels]:
    """What a server without hooks tells, and nothing else is in the registry."""
    PrometheusStatLogger(base_config(), [0])
    yield told()
    unregister_vllm_metrics()  # type: ignore[no-untyped-call]


@pytest.fixture
def ours(upstreams: Labels) -> Labels:
    """What hooks add."""
    output_processor: Any = None
    HookStatLogger(base_config(), [0], output_processor, logs=False)
    return {name: labels for name, labels in told().items() if name not in upstreams}


def told() -> Labels:
    """What the registry would answer to Prometheus."""
    samples = (sample for family in REGISTRY.collect() for sample in family.samples)
    return {sample.name: set(sample.labels) for sample in samples if sample.name.startswith("vllm:")}


def expressions() -> list[str]:
    """All that the dashboard asks for."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_every_metric_that_it_asks_for_exists(upstreams: Labels, ours: Labels) -> None:
    """With the labels that it groups by."""
    known = upstreams | ours
    for expression in expressions():
        names = set(re.findall(r"vllm:\w+", expression))
        assert names and names <= set(known)
        labels = {"model_name", *re.findall(r"by \((\w+)\)", expression)}
        assert all(labels <= known[name] for name in names), expression


def test_every_metric_of_ours_is_on_it(ours: Labels) -> None:
    """A histogram by any of its parts."""
    shown = {PARTS.sub("", name) for expression in expressions() for name in re.findall(r"vllm:\w+", expression)}
    assert len(ours) > 5 and {PARTS.sub("", name) for name in ours} - shown == set()
