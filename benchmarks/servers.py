# SPDX-License-Identifier: Apache-2.0
"""Servers that a bench starts: a free port, and the time until they answer."""

import socket
import subprocess
import time
from contextlib import suppress
from typing import Any

import httpx

PATIENCE_SECONDS = 600
"""The time after which we assume that a server hangs."""


def free_address() -> tuple[str, list[str]]:
    """An address that nothing listens at, and the options by which `vllm serve` does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"]
    return f"http://127.0.0.1:{port}", options


def wait_for(address: str, process: "subprocess.Popen[Any]") -> None:
    """Return once a server answers; raises a `RuntimeError` if its process ends before, or takes too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server has ended with {process.returncode}")
        with suppress(httpx.HTTPError):
            if httpx.get(f"{address}/health").is_success:
                return
        time.sleep(0.2)
    raise RuntimeError(f"the server did not answer within {PATIENCE_SECONDS} s")


def end(process: "subprocess.Popen[Any]") -> None:
    """End a server, which has a while to end its engine."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
