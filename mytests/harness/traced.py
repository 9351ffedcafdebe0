# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry spans of requests of a surgical engine, collected in memory."""

import dataclasses
from functools import cache
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mytests.harness.surgical import HOOKS, SurgicalEngine, plan
from vllm.tracing import SpanAttributes

NESTED = dataclasses.replace(HOOKS, max_child_depth=2)


@cache
def exporter() -> InMemorySpanExporter:
    """Where the spans of this process go: OpenTelemetry takes one provider in a process."""
    provider, collected = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(collected))
    trace.set_tracer_provider(provider)
    return collected


def collected() -> dict[str, ReadableSpan]:
    """The spans since the last call, by request id."""
    spans = exporter().get_finished_spans()
    exporter().clear()
    return {str((span.attributes or {})[SpanAttributes.GEN_AI_REQUEST_ID]): span for span in spans}


def traced_run(headers: dict[str, str] | None = None, **texts: str) -> dict[str, ReadableSpan]:
    """The spans of request "r" and its children, by request id; its caller has sent these headers."""
    exporter().clear()
    engine = SurgicalEngine(NESTED)
    request: Any = engine.add()
    request.trace_headers = headers
    engine.run_traced(request, plan(**texts))
    engine.assert_empty()
    return collected()
