# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.parts TITLE --chain LABEL PART… --either PART… --then PART…``: run parts side by side.

A part is a target of make, or ``NAME=COMMAND``, and one that fails hides no other. Chains run side by side, the parts
of each in their order; whichever ends first takes the next part after ``--either``; then come those after ``--then``.
If a part with a "!" after its name fails, which is set-up, neither the rest of its chain nor what comes after the
chains is run. Any Python from 3.7 up runs this, before anything is installed.

A part may run parts of its own. How each of them went is in the ledger, and the last line names those that failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import IO, Any

from build_tools.durations import write
from build_tools.ledger import Ran, begin, clock, note, noted, verdict

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "durations"
PART_VARIABLE = "RUNNING_PART"
"""Names the part to what it runs: to parts within it, and to `mytests.harness.timing`."""

FOLDER_VARIABLE = "DURATIONS_FOLDER"
INTERRUPTED = 130
_PATIENCE = 10
_LOOK_SECONDS = 0.5
_LOCAL_FLAGS = re.compile(r"(^|\s)(-j\d*|--jobserver-\w+=\S+)(?=\s|$)")
"""What a make that runs parts was told about its own processes, and cannot share with those of its parts."""


@dataclass(frozen=True)
class Part:
    """A command with a name."""

    name: str
    command: str
    is_needed: bool = False
    """Whether what comes after it is run only if it succeeds."""

    @classmethod
    def of(cls, text: str) -> Part:
        """The part that a word of the command line stands for."""
        name, has_command, command = text.partition("=")
        target = name.rstrip("!")
        made = f"make --no-print-directory {shlex.quote(target)}"
        return cls(target, command if has_command else made, name.endswith("!"))


class Terminated(KeyboardInterrupt):
    """This process alone was told to end."""


class Runner:
    """Runs parts, and notes in a folder how they went.

    Args:
        within: The name of the part that this is, if it is one.
    """

    def __init__(self, folder: Path, within: str = "") -> None:
        self.folder = folder
        self._within = within
        self._writing = threading.Lock()
        self._starting = threading.Lock()
        """Else a part could start unseen while all others are told to end."""

        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False
        self._needed: dict[str, bool | None] = {}
        """Of each part of a chain that is needed, whether it has succeeded; None until it has ended."""

        self._needed_has_ended = threading.Condition()
        self._either: deque[Part] = deque()

    def run(
        self, chains: Sequence[tuple[str, Sequence[Part]]], either: Iterable[Part] = (), then: Iterable[Part] = ()
    ) -> None:
        """Run ``chains``, each a label and its parts, side by side, and what comes ``then``.

        Args:
            either: What needs all set-up, and is run by the chains that have come to their end.

        Raises:
            KeyboardInterrupt: the user wants no more; nothing runs any longer.
        """
        width = max((len(label) for label, _ in chains), default=0)
        self._needed = {part.name: None for _, parts in chains for part in parts if part.is_needed}
        self._either = deque(either)
        with ThreadPoolExecutor(max(1, len(chains))) as pool:
            try:
                running = []
                for label, parts in chains:
                    shown = f"{label:{width}} | " if len(chains) > 1 else ""
                    running.append(pool.submit(self._chain, shown, chain(parts, self._shared())))
                went_well = [_awaited(each) for each in running]
                _awaited(pool.submit(self._chain, "", chain(self._either, then), all(went_well)))
            except KeyboardInterrupt as error:
                with self._starting:
                    self._is_stopped = True
                    # Those of a terminal have had its signal too, and clean up.
                    for process in self._running if isinstance(error, Terminated) else ():
                        process.terminate()
                raise

    def _chain(self, label: str, parts: Iterable[Part], is_ready: bool = True) -> bool:
        """Whether all went well that is needed for others."""
        for part in parts:
            name = f"{self._within}/{part.name}" if self._within else part.name
            start = time.time()
            status = self._status(part, name, label) if is_ready else None
            note(self.folder, Ran(name, status, start, round(time.time() - start, 2)))
            if part.is_needed:
                is_ready = is_ready and status == 0
                with self._needed_has_ended:
                    self._needed[part.name] = is_ready
                    self._needed_has_ended.notify_all()
        return is_ready

    def _shared(self) -> Iterator[Part]:
        """The parts that a chain takes at its end, once all set-up is done; none if that has failed."""
        with self._needed_has_ended:
            self._needed_has_ended.wait_for(lambda: None not in self._needed.values() or False in self._needed.values())
        while False not in self._needed.values():
            try:
                yield self._either.popleft()
            except IndexError:
                return

    def _status(self, part: Part, name: str, label: str) -> int | None:
        """How the part ended; None if it was not to begin any more."""
        streams: dict[str, Any] = {}
        if label:
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        variables = {**os.environ, PART_VARIABLE: name, FOLDER_VARIABLE: str(self.folder)}
        variables["MAKEFLAGS"] = _LOCAL_FLAGS.sub("", variables.get("MAKEFLAGS", ""))
        with self._starting:
            if self._is_stopped:
                return None
            self._say(label, f"== part {name}\n".encode())
            process = subprocess.Popen(part.command, shell=True, cwd=ROOT, env=variables, **streams)
            self._running.add(process)
        if process.stdout:
            # A process that outlives its part may keep the pipe open.
            reader = threading.Thread(target=self._copy, args=(label, process.stdout), daemon=True)
            reader.start()
        status = process.wait()
        if process.stdout:
            reader.join(_PATIENCE)
        with self._starting:
            self._running.remove(process)
        return status

    def _copy(self, label: str, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                self._say(label, line if line.endswith(b"\n") else line + b"\n")

    def _say(self, label: str, line: bytes) -> None:
        with self._writing:
            sys.stdout.buffer.write(label.encode() + line)
            sys.stdout.buffer.flush()


def _awaited(future: Future[bool]) -> bool:
    """What it returns. A signal that comes just before a wait, or to another thread, does not end that wait."""
    while wait([future], _LOOK_SECONDS).not_done:
        pass
    return future.result()


def summary(title: str, parts: Sequence[Ran]) -> str:
    """A line for each part, and one that counts them as test runners do; the last line of a run comes after it."""
    rows = [f"{part.outcome:8} {clock(part.seconds):>6}  {part.name}" for part in parts]
    passed, failed, skipped = (sum(part.outcome == each for part in parts) for each in ("passed", "failed", "not run"))
    return "\n".join([f"== parts of {title}", *rows, f"{title}: {passed} passed, {failed} failed, {skipped} skipped"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 if all parts passed."""
    given = _parser().parse_args(arguments)
    within = os.environ.get(PART_VARIABLE, "")
    folder = Path(os.environ.get(FOLDER_VARIABLE, FOLDER))
    folder.mkdir(parents=True, exist_ok=True)
    if not within:
        begin(folder, given.title)
    failures = folder / f"{given.title}.failed"
    failures.write_text("")
    otherwise = signal.signal(signal.SIGTERM, _terminate)
    is_interrupted = False
    try:
        chains = [(label, [Part.of(word) for word in words]) for label, *words in given.chain]
        Runner(folder, within).run(chains, map(Part.of, given.either), map(Part.of, given.then))
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        signal.signal(signal.SIGTERM, otherwise)
    parts = noted(folder, within)
    told = "interrupted" if is_interrupted else verdict(parts)
    failures.write_text(told)
    if not within:
        print(write(folder))
        print(summary(given.title, parts))
    print(told or f"all parts of {given.title} passed", flush=True)
    return INTERRUPTED if is_interrupted else int(bool(told))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m build_tools.parts", description=__doc__)
    parser.add_argument("title", help="what the parts are together")
    parser.add_argument("--chain", nargs="+", action="append", default=[], metavar=("LABEL", "PART"))
    parser.add_argument("--either", nargs="*", default=[], metavar="PART")
    parser.add_argument("--then", nargs="*", default=[], metavar="PART")
    return parser


def _terminate(signal_number: int, frame: FrameType | None) -> None:
    raise Terminated


if __name__ == "__main__":
    sys.exit(main())
