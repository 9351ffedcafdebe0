# SPDX-License-Identifier: Apache-2.0
"""Collects the OpenTelemetry spans that a server exports."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from vllm.tracing import SpanAttributes


@dataclass(frozen=True)
class Collector:
    """What has arrived so far at ``endpoint``."""

    endpoint: str
    spans: list[Any] = field(repr=False)

    def of(self, request_id: str) -> list[Any]:
        """The spans of one sequence."""
        return [span for span in list(self.spans) if _request_id(span) == request_id]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens until the block ends."""
    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            exported = ExportTraceServiceRequest.FromString(body)
            spans.extend(
                span for resource in exported.resource_spans for scope in resource.scope_spans for span in scope.spans
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield Collector(f"http://127.0.0.1:{server.server_port}/v1/traces", spans)
        finally:
            server.shutdown()


def _request_id(span: Any) -> str | None:
    for attribute in span.attributes:
        if attribute.key == SpanAttributes.GEN_AI_REQUEST_ID:
            found: str = attribute.value.string_value
            return found
    return None
