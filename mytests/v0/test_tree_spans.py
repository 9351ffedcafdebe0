# SPDX-License-Identifier: Apache-2.0
"""When a child's OpenTelemetry span is made, and which times it has; `mytests/rules/test_spans.py` has the rest."""

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

from mytests.harness.surgical import SurgicalEngine, plan
from mytests.harness.traced import NESTED, collected, exporter
from vllm._upstream.engine import llm_engine as upstream
from vllm.engine.llm_engine import LLMEngine
from vllm.sequence import SequenceGroup
from vllm.tracing import SpanAttributes


@pytest.fixture
def engine() -> LLMEngine:
    """An engine that does nothing but trace."""
    exporter().clear()
    engine = LLMEngine.__new__(LLMEngine)
    engine.tracer, engine.model_config = trace.get_tracer("test"), type("Config", (), {"model": "tiny"})
    return engine


def traced(engine: LLMEngine, group: SequenceGroup) -> dict[str, ReadableSpan]:
    """The spans that are made for a group, by request id."""
    engine.create_trace_span(group)
    return collected()


def finished_group(**texts: str) -> SequenceGroup:
    """A request that has ended, with the times that an engine would have set."""
    engine = SurgicalEngine(NESTED)
    group = engine.add()
    engine.run(plan(**texts))
    group.metrics.first_token_time = group.metrics.finished_time = 5.0
    engine.assert_empty()
    return group


class TestSpans:
    def test_a_child_has_its_own_times(self, engine: LLMEngine) -> None:
        """Its span is from its spawn to its end, not from its request's start to that one's end."""
        group = finished_group(r="!z", r_child_0="A")
        (child,) = group.first_seq.branch.children
        child.spawn_time, child.finished_time = 2.0, 3.5
        child.sequence.group.metrics.first_scheduled_time = 2.25
        span = traced(engine, group)["r_child_0"]
        assert (span.start_time, span.end_time) == (2_000_000_000, 3_500_000_000)
        assert (span.attributes or {})[SpanAttributes.GEN_AI_LATENCY_TIME_IN_QUEUE] == 0.25

    def test_what_has_no_end_yet_is_traced_with_its_join(self, engine: LLMEngine) -> None:
        """With asynchronous output it may have joined later; and a child's span is made at the end of its request."""
        group = finished_group(r="!z", r_child_0="A")
        child = group.first_seq.branch.children[0].sequence.group
        group.metrics.finished_time, child.metrics.finished_time = None, 5.0
        assert traced(engine, group) == traced(engine, child) == {}

    def test_the_tracer_is_the_engines_own_again(self, engine: LLMEngine) -> None:
        """Afterwards, with children and without."""
        tracer = engine.tracer
        for texts in ({"r": "z"}, {"r": "!z", "r_child_0": "A"}):
            assert list(traced(engine, finished_group(**texts))) == list(texts)
            assert engine.tracer is tracer


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
