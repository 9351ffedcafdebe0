# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.parts TITLE --chain LABEL PART… --then PART…``: run parts; one that fails hides no other.

A part is a target of make, or ``NAME=COMMAND``. Chains run side by side, the parts of each in their order, and then
those after ``--then``. If a part with a "!" after its name fails, which is set-up, neither the rest of its chain nor
what comes after the chains is run. Any Python from 3.7 up runs this, before anything is installed.

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
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from build_tools.durations import write
from build_tools.ledger import Ran, begin, clock, note, noted, verdict

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "durations"
PART_VARIABLE = "RUNNING_PART"
"""Names the part to what it runs: to parts within it, and to `mytests.timing`."""

FOLDER_VARIABLE = "DURATIONS_FOLDER"
INTERRUPTED = 130
_PATIENCE = 10
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

    def run(self, chains: Sequence[tuple[str, Sequence[Part]]], then: Iterable[Part] = ()) -> None:
        """Run ``chains``, each a label and its parts, side by side, and what comes ``then``.

        Raises:
            KeyboardInterrupt: the user wants no more; nothing runs any longer.
        """
        width = max((len(label) for label, _ in chains), default=0)
        with ThreadPoolExecutor(max(1, len(chains))) as pool:
            try:
                running = []
                for label, parts in chains:
                    running.append(pool.submit(self._chain, f"{label:{width}} | " if len(chains) > 1 else "", parts))
                went_well = [each.result() for each in running]
                pool.submit(self._chain, "", then, all(went_well)).result()
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
            is_ready = is_ready and (status == 0 or not part.is_needed)
        return is_ready

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
        Runner(folder, within).run(chains, [Part.of(word) for word in given.then])
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
    parser.add_argument("--then", nargs="*", default=[], metavar="PART")
    return parser


def _terminate(signal_number: int, frame: FrameType | None) -> None:
    raise Terminated


if __name__ == "__main__":
    sys.exit(main())
