# SPDX-License-Identifier: Apache-2.0
"""Forks and joins over HTTP: a server for each mode, the same prompts as `demo.py`, and upstream's `openai` client.

Usage: `python examples/demo_served.py [--count 100]`
"""

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from forkjoin_engine import GREEDY, MODEL_FOLDER, hooks_for
from forkjoin_task import EOS, MODES, Mode, held_out_prompts, is_correct
from openai import AsyncOpenAI

SEED = 1
MAX_SECONDS = 300
"""Until a server answers."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--count", type=int, default=100, help="held-out prompts a mode")
    count = arguments.parse_args().count
    for mode in MODES:
        prompts = held_out_prompts(count, SEED, mode)
        with serving(mode) as url:
            answers = asyncio.run(ask(url, prompts))
        correct = sum(map(is_correct, prompts, answers))
        print(f'block_on="{mode}", over HTTP: exact match: {100 * correct / len(prompts):.1f} %')


@contextlib.contextmanager
def serving(mode: Mode) -> Iterator[str]:
    """A server with the hooks of ``mode``; yields its address.

    Raises:
        RuntimeError: it does not answer.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    hooks = {name: value for name, value in vars(hooks_for(mode)).items() if value not in (None, ())}
    command = [str(Path(sys.executable).parent / "vllm"), "serve", str(MODEL_FOLDER), "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
    command += ["--special-kwargs", json.dumps(hooks)]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            url = f"http://localhost:{port}"
            if not answers_at(url, process):
                log.seek(0)
                raise RuntimeError(f"the server at {url} does not answer:\n{log.read().decode(errors='replace')}")
            yield f"{url}/v1"
        finally:
            process.terminate()


def answers_at(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the server answers; return False if it ends before that, or takes too long."""
    end = time.monotonic() + MAX_SECONDS
    while process.poll() is None and time.monotonic() < end:
        # A server that is about to listen may also reset the connection.
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health"):
            return True
        time.sleep(0.5)
    return False


async def ask(url: str, prompts: list[str]) -> list[str]:
    """The whole output for each prompt, without the EOS."""
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

        async def complete(prompt: str) -> str:
            completion = await client.completions.create(
                model=str(MODEL_FOLDER),
                prompt=prompt,
                max_tokens=GREEDY.max_tokens,
                temperature=0,
                extra_body={"skip_special_tokens": False},
            )
            return completion.choices[0].text.removesuffix(EOS)

        return await asyncio.gather(*map(complete, prompts))


if __name__ == "__main__":
    main()
