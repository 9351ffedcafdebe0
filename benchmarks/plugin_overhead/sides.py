# SPDX-License-Identifier: Apache-2.0
"""The sides, each an engine in a process of its own that waits while the others run."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

OFF, ON, AGAIN = "off", "on", "off again"
SIDES = (OFF, ON, AGAIN)
"""The last one is like the first, to see by how much two such processes differ."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
}
"""Core, front end and model in one thread, which is bound to no core that other processes use; no network."""


class Side:
    """A process with an engine."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process, self._log = process, log

    def wait(self) -> None:
        """Wait until the engine has started."""
        assert self._read() == "ready"

    def do(self, command: str, number: int) -> Any:
        """The answer to a command of `benchmarks.plugin_overhead.worker.Bench`."""
        assert self._process.stdin is not None
        print(json.dumps([command, number]), file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine's process has ended; it said last:\n{self._log.read_text()[-4000:]}")
        return json.loads(line)


@contextmanager
def opened(
    folder: Path, arguments: dict[str, Any], hooks: dict[str, dict[str, Any] | None]
) -> Iterator[dict[str, Side]]:
    """An engine for each name in ``hooks``, all at once; logs are in ``folder``."""
    with ExitStack() as stack:
        sides = {name: stack.enter_context(_started(folder / f"{name}.log", arguments, hooks[name])) for name in hooks}
        for side in sides.values():
            side.wait()
        yield sides


@contextmanager
def _started(log: Path, arguments: dict[str, Any], hooks: dict[str, Any] | None) -> Iterator[Side]:
    command = [sys.executable, "-m", "benchmarks.plugin_overhead.worker", json.dumps(arguments), json.dumps(hooks)]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        ) as process,
    ):
        try:
            yield Side(process, log)
        finally:
            process.kill()
