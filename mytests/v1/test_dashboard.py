# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard in deploy/ asks for metrics that a server has, and shows all of ours."""

import json
import re
from pathlib import Path
from typing import Any

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


def told() -> Labels:
    """What the registry would answer to Prometheus."""
    samples = (sample for family in REGISTRY.collect() for sample in family.samples)
    return {sample.name: set(sample.labels) for sample in samples if sample.name.startswith("vllm:")}


def test_it_asks_for_what_a_server_has_and_shows_all_of_ours() -> None:
    """With the labels that it groups by; a histogram by any of its parts."""
    output_processor: Any = None
    PrometheusStatLogger(base_config(), [0])
    upstreams = told()
    HookStatLogger(base_config(), [0], output_processor, logs=False)
    known, shown = told(), set[str]()
    unregister_vllm_metrics()  # type: ignore[no-untyped-call]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    for expression in [target["expr"] for panel in panels for target in panel.get("targets", ())]:
        names = set(re.findall(r"vllm:\w+", expression))
        assert names and names <= set(known)
        labels = {"model_name", *re.findall(r"by \((\w+)\)", expression)}
        assert all(labels <= known[name] for name in names), expression
        shown |= {PARTS.sub("", name) for name in names}
    ours = {PARTS.sub("", name) for name in known.keys() - upstreams.keys()}
    assert len(ours) > 5 and ours - shown == set()
