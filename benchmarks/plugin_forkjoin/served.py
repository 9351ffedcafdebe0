# SPDX-License-Identifier: Apache-2.0
"""``vllm serve``, used over HTTP by this process, as a side of the bench."""

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil

from benchmarks.forkjoin.engine import Run, Step
from benchmarks.forkjoin.models import Model
from benchmarks.forkjoin.plans import Plan
from benchmarks.forkjoin.sides import Kind, Workshop
from benchmarks.plugin_forkjoin.http_client import WAYS, Calls
from benchmarks.servers import PATIENCE_SECONDS, free_address, wait_for


class ServedSide:
    """A server that runs."""

    def __init__(self, address: str, pid: int, model: str) -> None:
        self._address, self._pid, self._model = address, pid, model

    @property
    def pids(self) -> list[int]:
        """The processes that do its work: the server, its engine, and this one, which is the client."""
        server = psutil.Process(self._pid)
        return [os.getpid(), self._pid, *(child.pid for child in server.children(recursive=True))]

    def run(self, way: str, plan: Plan, seed: int) -> Run:
        """Do the work of ``plan`` in one of `benchmarks.plugin_forkjoin.http_client.WAYS`."""
        httpx.post(f"{self._address}/reset_prefix_cache").raise_for_status()
        before = self._num_steps()
        calls = asyncio.run(self._run(way, plan, seed))
        # Upstream's counts of tokens lack what children and resumes prefill, so they are left out.
        steps = [Step(0.0, 0, 0, 0.0, 0.0)] * (self._settled(before) - before)
        return Run(calls.seconds, steps, ends=calls.ends)

    async def _run(self, way: str, plan: Plan, seed: int) -> Calls:
        async with httpx.AsyncClient(base_url=self._address, timeout=PATIENCE_SECONDS) as client:
            calls = Calls(client, self._model)
            await WAYS[way](calls, plan, seed)
            return calls

    def _num_steps(self) -> int:
        """Steps of the model so far."""
        text = httpx.get(f"{self._address}/metrics").text
        found = re.search(r"^vllm:iteration_tokens_total_count.* (\S+)$", text, re.M)
        return 0 if found is None else int(float(found[1]))

    def _settled(self, before: int) -> int:
        """The number of steps once it has stopped to grow: it is told after the outputs."""
        number = before
        while (now := self._num_steps()) != number or now == before:
            number = now
            time.sleep(0.1)
        return number


@contextmanager
def served(workshop: Workshop, model: Model, kind: Kind) -> Iterator[ServedSide]:
    """A server of ``model``."""
    arguments = workshop.arguments(model, kind)
    hooks, path = arguments.pop("special_kwargs", None), arguments.pop("model")
    options = [text for name, value in arguments.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    options += ["--logits-processors", "benchmarks.forkjoin.scripts_v1:Scripts"]
    options += ["--block-size", "32", "--enforce-eager"]
    options += [] if hooks is None else ["--special-kwargs", json.dumps(hooks)]
    address, where = free_address()
    command = ["-m", "vllm.entrypoints.cli.main", "serve", path, *options, *where]
    with workshop.started(kind, *command) as process:
        wait_for(address, process)
        yield ServedSide(address, process.pid, path)
