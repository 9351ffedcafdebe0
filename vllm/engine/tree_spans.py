# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry spans of a tree: a child's below its parent's.

Upstream makes a request's span when the request has ended, so a child's is made then too, with the child's own times.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from vllm.core.hooked_sequence import V0Branch, branch_of
from vllm.sequence import SequenceGroup


class SpanKeeper:
    """A tracer that keeps what is needed to make further spans below its last one."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self.end_time = 0.0
        """When the next span ends, in seconds since the epoch."""

        self.headers: dict[str, str] = {}
        """Trace headers of a caller whose span is the last one, see https://www.w3.org/TR/trace-context/."""

    @contextmanager
    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with self._tracer.start_as_current_span(*args, end_on_exit=False, **kwargs) as span:
            context = span.get_span_context()
            ids = f"{context.trace_id:032x}-{context.span_id:016x}"
            self.headers = {"traceparent": f"00-{ids}-{context.trace_flags:02x}"}
            yield span
        span.end(int(self.end_time * 1e9))


def trace_tree(engine: Any, create_span: Callable[[SequenceGroup], None], group: SequenceGroup) -> None:
    """Make the spans of a request and of all its descendants by ``create_span``, which uses ``engine.tracer``.

    Nothing is done for a child's group: its span is made with its request's.
    """
    branch = branch_of(group)
    if branch is None:
        create_span(group)
    elif branch.parent is None:
        tracer = engine.tracer
        try:
            _trace(engine, SpanKeeper(tracer), create_span, branch, group)
        finally:
            engine.tracer = tracer


def _trace(
    engine: Any,
    keeper: SpanKeeper,
    create_span: Callable[[SequenceGroup], None],
    branch: V0Branch,
    group: SequenceGroup,
) -> None:
    engine.tracer, keeper.end_time = keeper, group.metrics.finished_time
    create_span(group)
    # Other headers that the request's caller sent, such as tracestate, are passed down too.
    headers = {**(group.trace_headers or {}), **keeper.headers}
    for child in branch.children:
        _trace(engine, keeper, create_span, child, _as_request(child, headers))


def _as_request(child: V0Branch, headers: dict[str, str]) -> SequenceGroup:
    """A copy of the child's group that looks like a request from its parent's span, which arrived at the spawn."""
    metrics, end = child.sequence.group.metrics, child.finished_time or child.spawn_time
    scheduled = metrics.first_scheduled_time or child.spawn_time
    group = copy.copy(child.sequence.group)
    group.trace_headers = headers
    group.metrics = replace(
        metrics,
        arrival_time=child.spawn_time,
        time_in_queue=max(0.0, scheduled - child.spawn_time),
        first_token_time=metrics.first_token_time or end,
        finished_time=end,
    )
    return group
