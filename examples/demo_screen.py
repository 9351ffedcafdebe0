# SPDX-License-Identifier: Apache-2.0
"""The screen of a demo: it has what the demo shows, and a log in build/logs/ has all that vLLM prints."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from rich.console import Console, RenderableType
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

LOGS = Path(__file__).resolve().parents[1] / "build" / "logs"


class Screen:
    """Where a demo shows what it does."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, *shown: RenderableType) -> None:
        """Print texts as they are, without markup, and trees and tables as rich draws them."""
        self._console.print(*shown, markup=False)

    def begin(self, title: str) -> None:
        """A rule above the next part."""
        self._console.rule(title)

    @contextmanager
    def working(self, on: str) -> Iterator[None]:
        """A line that moves until the block ends; whatever is no terminal gets only the text."""
        self.show(f"{on} ...")
        # Python's streams lead to the log; on a terminal rich would bring what they get back to the screen.
        line = Progress(
            SpinnerColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not self._console.is_terminal,
        )
        with line as progress:
            progress.add_task(on, total=None)
            yield

    def end(self, shown: str, following: str) -> None:
        """The last three lines: what was shown, on which engine, and the command to try next."""
        for line in (f"Shown:  {shown}", f"Engine: {engine()}", f"Next:   {following}"):
            self._console.print(line, markup=False, soft_wrap=True)


@contextmanager
def screen(name: str) -> Iterator[Screen]:
    """The terminal, as a screen. From here on what this process prints, and those that it starts, goes to ``name``.log.

    It stays so until the process ends, because engines also warn when they are taken down. If the block raises an
    exception, the screen shows it, the log has the traceback, and the process ends with status 1.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / f"{name}.log"
    sys.stdout.flush()
    console = Console(file=os.fdopen(os.dup(1), "w"), highlight=False, width=120)
    with path.open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    console.print(f"vLLM's own log: {path}", soft_wrap=True)
    try:
        yield Screen(console)
    except Exception as error:
        traceback.print_exc()
        fault = "".join(traceback.format_exception_only(error)).rstrip()
        console.print(f"{fault}\nThe demo has failed. More is in {path}", markup=False, soft_wrap=True)
        raise SystemExit(1) from None


def is_fork() -> bool:
    """Whether the installed vLLM is the fork. It is not imported for this, nor for `engine`."""
    return "hooks" in version("vllm")


def engine() -> str:
    """The installed vLLM, in words."""
    release = version("vllm").partition("+")[0]
    return f"the fork of vLLM {release} (V0)" if is_fork() else f"stock vLLM {release} with the plug-in"
