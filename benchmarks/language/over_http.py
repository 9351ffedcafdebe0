# SPDX-License-Identifier: Apache-2.0
"""``vllm serve`` in a process of its own, and its client in this one."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from benchmarks.language.requests import Answered, Wanted

PATIENCE_SECONDS = 600
"""The time after which we assume that a server hangs."""


STOP_SECONDS = 30
"""The time that a server has to end by itself."""

MAX_STOPS = 4
"""So many stop strings OpenAI's protocol allows a request."""


class OverHttp:
    """Answers requests by a server's completions, and those that fork by its chat completions.

    Args:
        client: Its base URL is the server's. Whoever opens it closes it: a server waits for its connections.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def forget(self, before: Wanted) -> None:
        """Begin anew; see `Caller`."""
        (await self._client.post("/reset_prefix_cache")).raise_for_status()
        await self.call(before)

    async def call(self, wanted: Wanted) -> Answered:
        """The answer to one request; see `Caller`."""
        path, body = _body(wanted)
        times, token_ids, usage = list[float](), list[int](), dict[str, Any]()
        async with self._client.stream("POST", path, json=body) as response:
            response.raise_for_status()
            async for chunk in _chunks(response.aiter_lines()):
                usage = chunk.get("usage") or usage
                for choice in chunk["choices"]:
                    token_ids += choice.get("token_ids") or ()
                    said = choice["delta"].get("content") if "delta" in choice else choice["text"]
                    times += [time.perf_counter()] if said else []
        # What a join has merged is told as text alone.
        count = usage["completion_tokens"]
        whole = tuple(token_ids) if len(token_ids) == count else tuple(range(count))
        first, second, *_ = *times, time.perf_counter(), time.perf_counter()
        # Of an outline a heading comes first, without the expansion.
        return Answered(whole, first, second if wanted.question else first)


def _body(wanted: Wanted) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"model": "m", "temperature": 0, "max_tokens": wanted.max_tokens, "stream": True}
    body |= {"stream_options": {"include_usage": True}, "return_token_ids": True}
    if wanted.question:
        message = {"role": "user", "content": wanted.question}
        return "/v1/chat/completions", {**body, "skeleton": "always", "messages": [message]}
    if wanted.has_length:
        body |= {"ignore_eos": True, "min_tokens": wanted.max_tokens}
    if wanted.regex:
        body["structured_outputs"] = {"regex": wanted.regex}
    if wanted.arguments:
        body["vllm_xargs"] = {"hooks": wanted.arguments["hooks"]}
    tags = {"stop_token_ids": list(wanted.stop_token_ids)}
    return "/v1/completions", {**body, "prompt": list(wanted.prompt), "stop": list(wanted.stop[:MAX_STOPS]), **tags}


async def _chunks(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    async for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


@contextmanager
def served(model: str, fields: Mapping[str, Any], log: Path, *options: str) -> Iterator[str]:
    """The address of a server of ``model``, under the name "m", which runs until the block ends.

    Args:
        fields: Of `SpecialKwargs`.
        options: More of the command line's.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model, "--served-model-name", "m"]
    command += ["--special-kwargs", json.dumps(dict(fields)), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--enforce-eager", "--disable-uvicorn-access-log", *options]
    # It alone lets a client empty the prefix cache.
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1"}
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    with log.open("w") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address, process, log)
            yield address
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            process.kill()


def _wait(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(httpx.HTTPError):
            if httpx.get(f"{address}/health").is_success:
                return
        time.sleep(0.2)
    raise RuntimeError(f"no server of the benchmark has answered; it said last:\n{log.read_text()[-4000:]}")
