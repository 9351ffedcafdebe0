# SPDX-License-Identifier: Apache-2.0
"""A server of the tiny model with hooks, of the vLLM that is installed, and what its clients check."""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from forkjoin_engine import MODEL_FOLDER, hooks_for
from forkjoin_task import Mode, held_out_prompts
from openai import OpenAI
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from mytests.harness.late import OPTIONS
from mytests.harness.servers import server
from mytests.harness.serving import COMMAND, FRONT_ENDS, MERGES_OUTPUTS, MORE_ROUTES, THREADS_BIND, USE_V1
from vllm.tracing import SpanAttributes


@dataclass(frozen=True)
class Collector:
    """What has arrived so far at ``endpoint``."""

    endpoint: str
    spans: list[Any] = field(repr=False)

    def of(self, request_id: str) -> list[Any]:
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


MODEL = str(MODEL_FOLDER)
PROMPT = held_out_prompts(1, 8, "promise")[0]
NUM_CHILDREN = PROMPT.count(" ") // 2
MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
KEY = "a secret"
OTHERS = {"vllm serve, late": OPTIONS, "vllm serve, two API servers": ["--api-server-count", "2"]}
KINDS = FRONT_ENDS | (OTHERS if MERGES_OUTPUTS else {})
"""Options of each kind of server by its name."""

ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": THREADS_BIND,
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_LOG_STATS_INTERVAL": "1",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    "OTEL_BSP_SCHEDULE_DELAY": "100",
}


@dataclass(frozen=True)
class Server:
    """A server with hooks that runs."""

    address: str
    log: Path
    recording: Path
    spans: Collector
    model: str = MODEL
    has_peers: bool = False

    @property
    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.address}/v1", api_key=KEY, max_retries=0, timeout=120)

    def choice(self, **fields: Any) -> Any:
        (choice,) = self.client.completions.create(**fields).choices
        return choice

    def call(self, method: str, path: str, content_type: str | None = None, **arguments: Any) -> httpx.Response:
        """What it answers to one request that has the key, and ``content`` of this type."""
        headers = {"Authorization": f"Bearer {KEY}", **({} if content_type is None else {"Content-Type": content_type})}
        return httpx.request(method, f"{self.address}{path}", headers=headers, timeout=120, **arguments)

    def waiting(self) -> list[str]:
        """The request ids of the sequences that wait for their callers."""
        return [each["request_id"] for each in self.waits()]

    def waits(self) -> list[dict[str, Any]]:
        """What the server says about them."""
        sequences: list[dict[str, Any]] = self.call("GET", "/v1/sequences_awaiting_resume").json()["sequences"]
        return sequences

    def metric(self, name: str, **labels: str) -> float:
        """The value of one of vLLM's metrics, 0 before it is first set."""
        text = self.call("GET", "/metrics").text
        lines = [line for line in text.splitlines() if re.match(rf"vllm:{name}[{{ ]", line)]
        lines = [line for line in lines if all(f'{key}="{value}"' in line for key, value in labels.items())]
        return sum(float(line.split()[-1]) for line in lines)

    def is_zero(self, name: str) -> bool:
        """Whether a metric is 0; of several servers one may have heard an older step last, and hears of more."""
        if self.metric(name) == 0:
            return True
        if self.has_peers:
            self.choice(model=self.model, prompt="a", max_tokens=1)
        return False


def fields_for(mode: Mode, **fields: Any) -> dict[str, Any]:
    """The fields of `SpecialKwargs` that the tiny model was trained for, and those that are given."""
    hooks = vars(hooks_for(mode, **fields))
    return {name: value for name, value in hooks.items() if value not in (None, ())}


@contextmanager
def hook_server(
    folder: Path, options: list[str], fields: Mapping[str, Any], model: str = MODEL, max_model_len: int = 256
) -> Iterator[Server]:
    """A server that keeps its files in ``folder``, a recording among them; ``fields`` are of `SpecialKwargs`."""
    (folder / "template.jinja").write_text(TEMPLATE)
    log, recording = folder / "log", folder / "run.jsonl"
    command = [*COMMAND, model]
    given = json.dumps({**fields, "record_to": str(recording)})
    command += ["--special-kwargs", given, "--api-key", KEY, "--chat-template", str(folder / "template.jinja")]
    with collecting() as spans:
        command += ["--otlp-traces-endpoint", spans.endpoint, *MORE_ROUTES, *options]
        settings: dict[str, Any] = {"log": log, "max_model_len": max_model_len, **ENVIRONMENT}
        with server(*command, use_v1=USE_V1, **settings) as address:
            yield Server(address, log, recording, spans, model, "--api-server-count" in options)


def arguments(**extra: Any) -> dict[str, Any]:
    """The arguments of a greedy request whose text includes the hook tokens."""
    return {"model": MODEL, "temperature": 0, "max_tokens": 40, "extra_body": {"skip_special_tokens": False, **extra}}


def waits_for_its_caller() -> dict[str, Any]:
    """The arguments of a request that waits after its first token, and samples one more when it is resumed."""
    return {**arguments(allowed_token_ids=[hooks_for("promise").sync_token_id]), "prompt": "a", "max_tokens": 2}


def check_tree(choice: Any) -> None:
    """The choice has all children, and its segments cover the output without a gap."""
    assert [child["failed"] for child in choice.children] == [False] * NUM_CHILDREN
    ends = [segment["end"] for segment in choice.segments]
    assert [segment["start"] for segment in choice.segments] == [0, *ends[:-1]]
    assert {segment["child"] for segment in choice.segments} >= {child["request_id"] for child in choice.children}


def sampled_by(branch: Any) -> int:
    """The number of tokens that a choice or child, and all below it, have sampled."""
    segments, children = (getattr(branch, name, None) or branch[name] for name in ("segments", "children"))
    own = sum(segment["end"] - segment["start"] for segment in segments if segment["origin"] == "sampled")
    return int(own + sum(map(sampled_by, children)))


def check_usage(usage: Any, choices: list[Any]) -> None:
    """Each token of the choices has an origin, and all that was sampled is counted."""
    details = usage.completion_tokens_details
    by_origin = {
        origin: sum(s["end"] - s["start"] for choice in choices for s in choice.segments if s["origin"] == origin)
        for origin in ("sampled", "merged", "inserted")
    }
    assert sum(by_origin.values()) == usage.completion_tokens
    assert (details.merged_tokens, details.inserted_tokens) == (by_origin["merged"], by_origin["inserted"])
    assert details.sampled_tokens == sum(map(sampled_by, choices)) > by_origin["sampled"] + by_origin["merged"]
