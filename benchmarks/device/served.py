# SPDX-License-Identifier: Apache-2.0
"""``vllm serve`` with the scripted model, and a client of it."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from benchmarks.device.script import EOS
from benchmarks.device.ways import Prompt, Sample, Tokens
from benchmarks.servers import PATIENCE_SECONDS, end, free_address, wait_for


class Server:
    """A server that runs."""

    def __init__(self, address: str, model: str) -> None:
        self._address, self._model = address, model

    def run(self, work: Callable[[Sample], Awaitable[None]]) -> float:
        """The seconds of ``work``, with nothing in the prefix cache before."""
        httpx.post(f"{self._address}/reset_prefix_cache").raise_for_status()
        start = time.perf_counter()
        asyncio.run(self._run(work))
        return time.perf_counter() - start

    async def _run(self, work: Callable[[Sample], Awaitable[None]]) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._address, timeout=PATIENCE_SECONDS, limits=limits) as client:

            async def sample(prompt: Prompt, max_tokens: int, stop: int = EOS) -> Tokens:
                body = {
                    "model": self._model,
                    "prompt": list(prompt),
                    "max_tokens": max_tokens,
                    "temperature": 0,
                    "stop_token_ids": [stop],
                    "return_token_ids": True,
                }
                response = await client.post("/v1/completions", json=body)
                response.raise_for_status()
                return tuple(response.json()["choices"][0]["token_ids"])

            await work(sample)


@contextmanager
def served(hooks: dict[str, Any] | None, arguments: dict[str, Any]) -> Iterator[Server]:
    """A server, until the block ends."""
    address, where = free_address()
    model = arguments["model"]
    options = ["serve", model, *where]
    options += [] if hooks is None else ["--special-kwargs", json.dumps(hooks)]
    for name, value in arguments.items():
        if name != "model":
            options += _option(name, value)
    command = [sys.executable, "-m", "benchmarks.device.server", *options]
    variables = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with subprocess.Popen(command, env=variables, stdout=sys.stderr) as process:
        try:
            wait_for(address, process)
            yield Server(address, model)
        finally:
            end(process)


def _option(name: str, value: object) -> list[str]:
    """The command line's words for an argument of the engine."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", value if isinstance(value, str) else json.dumps(value)]
