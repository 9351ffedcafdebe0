# SPDX-License-Identifier: Apache-2.0
"""OpenAI-compatible servers of the tiny model, each in a process of its own."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from forkjoin_task import held_out_prompts

import mytests.harness.environment  # noqa: F401

EAGER = "--enforce-eager"
CLI = ["-m", "vllm.entrypoints.cli.main"]
API_SERVER = ["-m", "vllm.entrypoints.openai.api_server", "--model"]
SURE_PROMPT = held_out_prompts(2, 12, "sync")[1]
"""Of eight words. The model is sure of all of its answer; the first 16 tokens, two a word, need no hooks."""

PATIENCE_SECONDS = 900
"""The time after which we assume a hang; no measurement depends on it."""

Found = TypeVar("Found")


def model_args(max_model_len: int = 256) -> list[str]:
    return ["--dtype", "float32", "--max-model-len", str(max_model_len)]


def until(is_reached: Callable[[], Found]) -> Found:
    """Poll ``is_reached`` until its result is true, and return that."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := is_reached()):
        assert time.monotonic() < deadline, f"not reached in {PATIENCE_SECONDS} s"
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def server(
    *arguments: str, use_v1: str, log: Path | None = None, max_model_len: int = 256, **environment: str
) -> Iterator[str]:
    """The address of an OpenAI-compatible server with these variables, which runs until the block ends, and may log."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = ["--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, *arguments, *place, *model_args(max_model_len), EAGER]
    variables = os.environ | {"VLLM_USE_V1": use_v1} | environment
    address = f"http://127.0.0.1:{port}"
    with open(log or os.devnull, "wb") as output:
        process = subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT)
        try:
            try:
                _wait_until_healthy(address, process)
            except AssertionError as error:
                error.add_note(log.read_text()[-4000:] if log else "it has no log")
                raise
            yield address
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE_SECONDS)


def _wait_until_healthy(address: str, process: "subprocess.Popen[bytes]") -> None:
    def answers() -> bool:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=60):
            return True
        return False

    until(answers)
