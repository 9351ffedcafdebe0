# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry spans: a child's is under its parent's."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mytests.surgical import HOOKS, SurgicalEngine, plan
from vllm._upstream.engine import llm_engine as upstream
from vllm.engine.llm_engine import LLMEngine
from vllm.sequence import SequenceGroup
from vllm.tracing import SpanAttributes

NESTED = dataclasses.replace(HOOKS, max_child_depth=2)


class Traced:
    """Collects in memory upstream's own spans of a surgical engine's groups."""

    def __init__(self) -> None:
        self._exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.engine = LLMEngine.__new__(LLMEngine)
        self.engine.tracer = provider.get_tracer("test")
        self.engine.model_config = type("Config", (), {"model": "tiny"})

    def trace(self, group: SequenceGroup) -> dict[str, ReadableSpan]:
        """The spans by request id."""
        self.engine.create_trace_span(group)
        spans = self._exporter.get_finished_spans()
        return {str((span.attributes or {})[SpanAttributes.GEN_AI_REQUEST_ID]): span for span in spans}


def finished_group(**texts: str) -> SequenceGroup:
    """A request that has ended, with the times that an engine would have set."""
    engine = SurgicalEngine(NESTED)
    group = engine.add()
    engine.run(plan(**texts))
    group.metrics.first_token_time = group.metrics.finished_time = 5.0
    engine.assert_empty()
    return group


@pytest.fixture
def traced() -> Iterator[Traced]:
    yield Traced()


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


class TestSpans:
    def test_a_childs_span_is_under_its_parents(self, traced: Traced) -> None:
        """This holds at every depth, in one trace."""
        spans = traced.trace(finished_group(r="!z", r_child_0="!y", r_child_0_child_0="x"))
        root, child, grandchild = (spans[name] for name in ("r", "r_child_0", "r_child_0_child_0"))
        assert parent_id(root) is None
        assert parent_id(child) == root.context.span_id
        assert parent_id(grandchild) == child.context.span_id
        assert {span.context.trace_id for span in spans.values()} == {root.context.trace_id}

    def test_what_a_caller_sends_beside_goes_down(self, traced: Traced) -> None:
        """The trace state, which its vendor needs, reaches the children's spans."""
        group = finished_group(r="!z", r_child_0="A")
        group.trace_headers = {"tracestate": "vendor=1"}
        parent = traced.trace(group)["r_child_0"].parent
        assert parent is not None and parent.trace_state.get("vendor") == "1"

    def test_siblings_are_side_by_side(self, traced: Traced) -> None:
        """Their spans have the same parent."""
        spans = traced.trace(finished_group(r="!!z", r_child_0="A", r_child_1="B"))
        assert parent_id(spans["r_child_0"]) == parent_id(spans["r_child_1"]) == spans["r"].context.span_id

    def test_a_child_has_its_own_times(self, traced: Traced) -> None:
        """Its span is from its spawn to its end, not from its request's start to that one's end."""
        group = finished_group(r="!z", r_child_0="A")
        (child,) = group.first_seq.branch.children
        child.spawn_time, child.finished_time = 2.0, 3.5
        child.sequence.group.metrics.first_scheduled_time = 2.25
        span = traced.trace(group)["r_child_0"]
        assert (span.start_time, span.end_time) == (2_000_000_000, 3_500_000_000)
        assert (span.attributes or {})[SpanAttributes.GEN_AI_LATENCY_TIME_IN_QUEUE] == 0.25

    def test_what_has_no_end_yet_is_traced_with_its_join(self, traced: Traced) -> None:
        """With asynchronous output it may have joined after the step that is traced."""
        group = finished_group(r="z")
        group.metrics.finished_time = None
        assert traced.trace(group) == {}

    def test_a_childs_own_end_makes_none(self, traced: Traced) -> None:
        """Its span is made at the end of its request."""
        child = finished_group(r="!z", r_child_0="A").first_seq.branch.children[0].sequence.group
        child.metrics.finished_time = 5.0
        assert traced.trace(child) == {}

    def test_a_request_without_children_is_upstreams(self, traced: Traced) -> None:
        """There is one span, and afterwards the tracer is the engine's own again."""
        tracer = traced.engine.tracer
        assert list(traced.trace(finished_group(r="z"))) == ["r"]
        assert traced.engine.tracer is tracer


@pytest.mark.parametrize("is_traced", [True, False])
def test_requests_that_end_at_a_join_are_traced(is_traced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream traces only the requests of the current step."""
    engine, made = LLMEngine.__new__(LLMEngine), []
    engine.tracer = object() if is_traced else None
    monkeypatch.setattr(upstream.LLMEngine, "create_trace_span", lambda _, group: made.append(group.request_id))
    group = finished_group(r="z")
    outputs: Any = type("Outputs", (), {"scheduled_seq_groups": [], "ignored_seq_groups": [group]})
    group.first_seq.branch = None
    engine.do_tracing(outputs)
    assert made == []
    monkeypatch.setattr("vllm.engine.llm_engine.finished_at_join", lambda _: [group])
    engine.do_tracing(outputs)
    assert made == (["r"] if is_traced else [])
