# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.pip_install ARGUMENT…``: pip's install, in a few lines of output and all of its errors.

pip prints either a line or two for each package or, with --quiet, nothing for minutes. This runs before anything else
is installed, so it needs only the standard library.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

from build_tools.errors import SetupError

_DISK = ("No space left on device", "Disk quota exceeded", "Permission denied", "Read-only file system")
_LARGE = re.compile(r"\((\d{3}[\d.]* MB|[\d.]+ GB)\)$")
"""A download to wait for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status; pip's errors are on standard error."""
    try:
        pip_install(sys.argv[1:] if arguments is None else arguments)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def pip_install(arguments: Sequence[str]) -> None:
    """Run pip's install, and show its progress, its errors, and those of its warnings that are of use.

    Raises:
        SetupError: pip failed; its own message is on standard error.
    """
    # Python compiles what it imports, which is a fraction of what all packages have.
    quick = ["--progress-bar", "off", "--no-compile"]
    command = [sys.executable, "-m", "pip", "install", *quick, *arguments]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # Python's warnings in a build are for the package's authors.
    environment["PYTHONWARNINGS"] = "ignore"
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, errors="replace", env=environment
        ) as process:
            assert process.stdout is not None
            show_progress(process.stdout, sys.stdout)
        said.seek(0)
        lines = [line.rstrip("\n") for line in said if not _is_noise(line)]
    print("".join(f"{line}\n" for line in lines), end="", file=sys.stderr)
    if process.returncode:
        raise SetupError(_failure(lines))


def show_progress(lines: Iterable[str], screen: IO[str]) -> None:
    """Show what pip does, from its output ``lines``: in one line of a terminal, or in a few lines of anything else."""
    line_of = _TerminalLine if screen.isatty() else _FewLines
    shown, num_packages = line_of(screen), 0
    for line in lines:
        kind, _, rest = line.strip().partition(" ")
        num_packages += kind in ("Collecting", "Processing", "Obtaining")
        if kind == "Installing":
            count = rest.count(",") + 1
            shown.milestone(f"installing {count} package{'s' * (count > 1)}")
        elif kind == "Downloading" and _LARGE.search(rest):
            shown.milestone(f"downloading {rest}")
        elif kind in ("Collecting", "Processing", "Downloading"):
            shown.package(num_packages, rest)
    shown.end()


@dataclass
class _TerminalLine:
    """A line that each text overwrites, and that is gone at the end."""

    screen: IO[str]

    def package(self, number: int, name: str) -> None:
        self.milestone(f"{number} packages: {name}")

    def milestone(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._rewrite(f"  {text}"[:width])

    def end(self) -> None:
        self._rewrite("")

    def _rewrite(self, text: str) -> None:
        self.screen.write(f"\r\033[K{text}")
        self.screen.flush()


@dataclass
class _FewLines:
    screen: IO[str]

    def package(self, number: int, name: str) -> None:
        pass

    def milestone(self, text: str) -> None:
        print(f"  {text}", file=self.screen, flush=True)

    def end(self) -> None:
        pass


def _is_noise(line: str) -> bool:
    """Whether pip warns that a folder lacks a package, which it then finds in another of its sources."""
    return line.startswith("WARNING: Location ") and "is ignored" in line


def _failure(lines: Sequence[str]) -> str:
    for line in lines:
        if any(reason in line for reason in _DISK):
            folders = f"{sys.prefix} or in {tempfile.gettempdir()}"
            return (
                f"pip cannot write ({line.strip()}); make room in {folders}, or name other folders in VENV and TMPDIR"
            )
    return "pip could not install what is needed; its own message is above"


if __name__ == "__main__":
    sys.exit(main())
