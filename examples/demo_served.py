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
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demo_screen import Screen, screen
from forkjoin_task import EOS, MAX_TOKENS, MODES, Mode, held_out_prompts, is_correct
from openai import AsyncOpenAI
from rich.text import Text
from rich.tree import Tree

SEED = 1
MAX_SECONDS = 300
"""Until a server answers."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--count", type=int, default=100, help="held-out prompts a mode")
    count = arguments.parse_args().count
    with screen("demo-served") as shown:
        correct = [show_mode(shown, mode, held_out_prompts(count, SEED, mode)) for mode in MODES]
        told = " and ".join(f"{share} of {count} ({mode})" for mode, share in zip(MODES, correct, strict=True))
        shown.end(f"children fork and join over HTTP, and {told} prompts are answered exactly", "make demo-language")


def show_mode(screen: Screen, mode: Mode, prompts: list[str]) -> int:
    """Show the tree of a request to a server with hooks of ``mode``; return how many prompts are answered exactly."""
    screen.begin(f'block_on="{mode}", over HTTP')
    with contextlib.ExitStack() as until_the_end:
        with screen.working("Starting a server"):
            url = until_the_end.enter_context(serving(mode))
        with screen.working(f"Answering {len(prompts)} prompts"):
            choices = asyncio.run(ask(url, prompts))
    screen.show(tree_of(prompts[0], choices[0]))
    return sum(map(is_correct, prompts, (choice.text.removesuffix(EOS) for choice in choices)))


def tree_of(prompt: str, choice: Any) -> Tree:
    """What a choice says about its children, and the text that they were joined into."""
    tree = Tree(Text(f"prompt {prompt!r}"))
    for child in choice.children:
        tree.add(Text(f"child at token {child['spawn_position']}: {child['text']!r}"))
    tree.add(Text(f"text of the choice: {choice.text!r}"))
    return tree


@contextlib.contextmanager
def serving(mode: Mode) -> Iterator[str]:
    """A server with the hooks of ``mode``; yields its address.

    Raises:
        RuntimeError: it does not answer.
    """
    from forkjoin_engine import MODEL_FOLDER, hooks_for  # It imports vLLM, for the whole process.

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    hooks = {name: value for name, value in vars(hooks_for(mode)).items() if value not in (None, ())}
    command = [str(Path(sys.executable).parent / "vllm"), "serve", str(MODEL_FOLDER), "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--served-model-name", "tiny"]
    command += ["--special-kwargs", json.dumps(hooks)]
    with subprocess.Popen(command) as process:
        try:
            url = f"http://localhost:{port}"
            if not answers_at(url, process):
                raise RuntimeError(f"the server at {url} does not answer")
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


async def ask(url: str, prompts: list[str]) -> list[Any]:
    """The choice for each prompt."""
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

        async def complete(prompt: str) -> Any:
            completion = await client.completions.create(
                model="tiny",
                prompt=prompt,
                max_tokens=MAX_TOKENS,
                temperature=0,
                extra_body={"skip_special_tokens": False},
            )
            return completion.choices[0]

        return await asyncio.gather(*map(complete, prompts))


if __name__ == "__main__":
    main()
