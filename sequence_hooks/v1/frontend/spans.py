# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry spans of a tree: a child's is below its parent's, and lasts from its spawn to its end.

Upstream makes a request's span when the request has ended, and its children's are made then, too. Upstream's function
for spans returns none, so a processor of OpenTelemetry's says which one it has made.
"""

import time
from collections.abc import Callable
from contextvars import ContextVar
from weakref import WeakSet

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, get_tracer_provider, set_span_in_context

from sequence_hooks.v1.frontend.replay import FrontBranch
from vllm.tracing import SpanAttributes, SpanKind, instrument_manual

_LATEST: ContextVar[SpanContext | None] = ContextVar("latest span", default=None)
_heard: WeakSet[TracerProvider] = WeakSet()
"""The providers whose spans are noted."""


class _Listener(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        _LATEST.set(span.get_span_context())


def trace_tree(root: FrontBranch, trace_request: Callable[[], None]) -> None:
    """Make the span of a finished request by ``trace_request``, and those of its descendants below it."""
    provider = get_tracer_provider()
    if isinstance(provider, TracerProvider) and provider not in _heard:
        provider.add_span_processor(_Listener())
        _heard.add(provider)
    _LATEST.set(None)
    trace_request()
    _trace_children(root, time.time())


def _trace_children(parent: FrontBranch, end_time: float) -> None:
    """Make the spans of a sequence's descendants below its own, which is the latest; without one there are none."""
    above = _LATEST.get()
    if above is None:
        return
    context = set_span_in_context(NonRecordingSpan(above))
    for child in parent.children:
        child_end = child.finished_time or end_time
        _trace(child, child_end, context)
        _trace_children(child, child_end)


def _trace(child: FrontBranch, end_time: float, context: Context) -> None:
    stats = child.sequence.stats
    assert stats is not None
    scheduled = stats.scheduled_ts or stats.queued_ts
    # A child that was aborted early has sampled nothing.
    first = stats.first_token_ts or scheduled
    latest = stats.last_token_ts if stats.first_token_ts else scheduled
    instrument_manual(
        span_name="llm_request",
        start_time=int(child.spawn_time * 1e9),
        end_time=int(end_time * 1e9),
        attributes={
            SpanAttributes.GEN_AI_LATENCY_TIME_TO_FIRST_TOKEN: first - stats.queued_ts,
            SpanAttributes.GEN_AI_LATENCY_E2E: end_time - child.spawn_time,
            SpanAttributes.GEN_AI_LATENCY_TIME_IN_QUEUE: scheduled - stats.queued_ts,
            SpanAttributes.GEN_AI_LATENCY_TIME_IN_MODEL_PREFILL: first - scheduled,
            SpanAttributes.GEN_AI_LATENCY_TIME_IN_MODEL_DECODE: latest - first,
            SpanAttributes.GEN_AI_LATENCY_TIME_IN_MODEL_INFERENCE: latest - scheduled,
            SpanAttributes.GEN_AI_REQUEST_ID: child.request_id,
            SpanAttributes.GEN_AI_USAGE_PROMPT_TOKENS: child.sequence.num_prompt_tokens,
            SpanAttributes.GEN_AI_USAGE_COMPLETION_TOKENS: stats.num_generation_tokens,
        },
        context=context,
        kind=SpanKind.SERVER,
    )
