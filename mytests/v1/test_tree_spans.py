# SPDX-License-Identifier: Apache-2.0
"""Which times a child's OpenTelemetry span has, and when there is none; `mytests/rules/test_spans.py` has the rest."""

import pytest

from mytests.harness.surgical import SurgicalEngine, plan
from mytests.harness.traced import collected, exporter, traced_run
from sequence_hooks.v1.frontend import spans
from vllm.tracing import SpanAttributes


class Clock:
    """The time of day and the engine's, which a test sets."""

    now = 1.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.time", clock.time)
    monkeypatch.setattr("time.monotonic", clock.time)
    return clock


@pytest.fixture
def engine(clock: Clock) -> SurgicalEngine:
    """An engine that traces its requests."""
    exporter().clear()
    engine = SurgicalEngine()
    engine.output_processor.tracing_enabled = True
    return engine


def test_a_child_has_its_own_times(engine: SurgicalEngine, clock: Clock) -> None:
    """Its span is from its spawn to its end, not from its request's start to that one's end."""
    engine.add()
    script = plan(r="!z", r_child_0="AB")
    engine.step(script)
    for clock.now in (2.0, 4.0, 7.0):
        engine.step(script)
    clock.now = 9.0
    engine.run(script)
    spans = collected()
    times = {name: (span.start_time, span.end_time) for name, span in spans.items()}
    assert times["r_child_0"] == (1_000_000_000, 7_000_000_000)
    attributes = spans["r_child_0"].attributes or {}
    assert [
        attributes[name]
        for name in (
            SpanAttributes.GEN_AI_LATENCY_E2E,
            SpanAttributes.GEN_AI_LATENCY_TIME_IN_QUEUE,
            SpanAttributes.GEN_AI_LATENCY_TIME_TO_FIRST_TOKEN,
            SpanAttributes.GEN_AI_LATENCY_TIME_IN_MODEL_PREFILL,
            SpanAttributes.GEN_AI_LATENCY_TIME_IN_MODEL_DECODE,
            SpanAttributes.GEN_AI_LATENCY_TIME_IN_MODEL_INFERENCE,
        )
    ] == [6, 1, 1, 0, 5, 5]


def test_an_aborted_child_ends_there(engine: SurgicalEngine, clock: Clock) -> None:
    """When the front end is told, in the next step; it may have sampled nothing."""
    engine.add()
    engine.step(plan(r="!z"))
    clock.now = 3.0
    engine.abort("r_child_0")
    engine.step(plan(r="!z"))
    clock.now = 4.0
    engine.run(plan(r="!z"))
    span = collected()["r_child_0"]
    assert (span.start_time, span.end_time) == (1_000_000_000, 3_000_000_000)


def test_what_its_caller_does_not_sample_is_not_traced() -> None:
    """As upstream's span of the request."""
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}
    assert traced_run(headers, r="!z", r_child_0="A") == {}


def test_a_foreign_provider_gets_the_requests_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only OpenTelemetry's own tells which span is the request's."""
    monkeypatch.setattr(spans, "get_tracer_provider", object)
    monkeypatch.setattr(spans._Listener, "on_end", lambda *_: None)
    assert list(traced_run(r="!z", r_child_0="A")) == ["r"]
