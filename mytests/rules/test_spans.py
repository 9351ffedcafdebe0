# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry spans: a child's is under its parent's."""

from opentelemetry.sdk.trace import ReadableSpan

from mytests.harness.traced import traced_run
from vllm.tracing import SpanAttributes


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


class TestSpans:
    def test_a_childs_span_is_under_its_parents(self) -> None:
        """This holds at every depth, in one trace."""
        spans = traced_run(r="!z", r_child_0="!y", r_child_0_child_0="x")
        root, child, grandchild = (spans[name] for name in ("r", "r_child_0", "r_child_0_child_0"))
        assert parent_id(root) is None
        assert parent_id(child) == root.context.span_id
        assert parent_id(grandchild) == child.context.span_id
        assert {span.context.trace_id for span in spans.values()} == {root.context.trace_id}

    def test_what_a_caller_sends_goes_down(self) -> None:
        """All spans are in its trace, and the trace state, which its vendor needs, reaches those of children."""
        trace_id = "0af7651916cd43dd8448eb211c80319c"
        headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01", "tracestate": "vendor=1"}
        spans = traced_run(headers, r="!z", r_child_0="A")
        assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {trace_id}
        assert parent_id(spans["r"]) == 0xB7AD6B7169203331
        assert parent_id(spans["r_child_0"]) == spans["r"].context.span_id
        assert [span.context.trace_state.get("vendor") for span in spans.values()] == ["1", "1"]

    def test_siblings_are_side_by_side(self) -> None:
        """Their spans have the same parent."""
        spans = traced_run(r="!!z", r_child_0="A", r_child_1="B")
        assert parent_id(spans["r_child_0"]) == parent_id(spans["r_child_1"]) == spans["r"].context.span_id

    def test_tokens_are_counted(self) -> None:
        """A child's prompt is the context that it began with."""
        attributes = traced_run(r="ab!z", r_child_0="ABC")["r_child_0"].attributes or {}
        assert attributes[SpanAttributes.GEN_AI_USAGE_PROMPT_TOKENS] == len("prompt" + "ab!")
        assert attributes[SpanAttributes.GEN_AI_USAGE_COMPLETION_TOKENS] == len("ABC") + 1

    def test_a_request_without_children_is_upstreams(self) -> None:
        """There is one span."""
        assert list(traced_run(r="z")) == ["r"]
