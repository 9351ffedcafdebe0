# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry spans: a child's is under its parent's."""

from opentelemetry.sdk.trace import ReadableSpan

from mytests.harness.surgical import tree
from mytests.harness.traced import traced_run
from vllm.tracing import SpanAttributes


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


class TestSpans:
    def test_a_childs_span_is_under_its_parents(self) -> None:
        """This holds at every depth, and for siblings, in one trace; a request without children has one span."""
        spans = traced_run(None, **tree("!!z", ("!y", "x"), "w"))
        assert {name: parent_id(span) for name, span in spans.items()} == {
            "r": None,
            "r_child_0": spans["r"].context.span_id,
            "r_child_1": spans["r"].context.span_id,
            "r_child_0_child_0": spans["r_child_0"].context.span_id,
        }
        assert {span.context.trace_id for span in spans.values()} == {spans["r"].context.trace_id}
        assert list(traced_run(r="z")) == ["r"]

    def test_what_a_caller_sends_goes_down(self) -> None:
        """All spans are in its trace, and the trace state, which its vendor needs, reaches those of children."""
        trace_id = "0af7651916cd43dd8448eb211c80319c"
        headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01", "tracestate": "vendor=1"}
        spans = traced_run(headers, r="!z", r_child_0="A")
        assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {trace_id}
        assert parent_id(spans["r"]) == 0xB7AD6B7169203331
        assert parent_id(spans["r_child_0"]) == spans["r"].context.span_id
        assert [span.context.trace_state.get("vendor") for span in spans.values()] == ["1", "1"]

    def test_tokens_are_counted(self) -> None:
        """A child's prompt is the context that it began with."""
        attributes = traced_run(r="ab!z", r_child_0="ABC")["r_child_0"].attributes or {}
        assert attributes[SpanAttributes.GEN_AI_USAGE_PROMPT_TOKENS] == len("prompt" + "ab!")
        assert attributes[SpanAttributes.GEN_AI_USAGE_COMPLETION_TOKENS] == len("ABC") + 1
