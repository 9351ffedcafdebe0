# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.start ENVIRONMENT CANDIDATE…``: create the environment with the first suitable interpreter.

Any Python from 3.7 up runs this, before anything is installed. With ``--python``, that one is the only candidate.
``--for plugin`` takes those that a current vLLM runs on.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from build_tools.errors import SetupError
from build_tools.release import PLUGIN_PYTHONS, SUPPORTED_PYTHONS

_PROBE = """
import sys
from importlib.util import find_spec
print(sys.implementation.name, "%d.%d.%d" % sys.version_info[:3], bool(find_spec("venv") and find_spec("ensurepip")))
"""
_PROBE_SECONDS = 60

PYTHONS = {"fork": SUPPORTED_PYTHONS, "plugin": PLUGIN_PYTHONS}
"""The versions to choose from, by what the environment is for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status; an error is one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m build_tools.start", description=__doc__)
    parser.add_argument("environment", type=Path)
    parser.add_argument("candidates", nargs="+", metavar="CANDIDATE")
    parser.add_argument("--python", default="", help="the interpreter that the user asks for")
    parser.add_argument("--for", dest="purpose", choices=PYTHONS, default="fork", help="what the environment is for")
    given = parser.parse_args(arguments)
    try:
        interpreter = choose_interpreter(given.python, given.candidates, PYTHONS[given.purpose])
        make_environment(interpreter, given.environment)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def choose_interpreter(
    asked: str, candidates: Sequence[str], supported: Sequence[tuple[int, int]] = SUPPORTED_PYTHONS
) -> str:
    """``asked`` if it is given, or else the first of ``candidates`` that is a usable Python of the ``supported`` ones.

    Raises:
        SetupError: none can; the message says why not for each.
    """
    refused = []
    for candidate in [asked] if asked else candidates:
        why_not = _why_not(candidate, supported)
        if why_not is None:
            return candidate
        refused.append(f"{candidate} {why_not}")
    fitting = _listed(supported)
    if asked:
        raise SetupError(f"PYTHON={refused[0]}; name an interpreter of Python {fitting}, or leave PYTHON out")
    listed = "; ".join(refused)
    raise SetupError(f"no Python {fitting}: {listed}; install one, or name it: PYTHON=/path/to/python3.11")


def make_environment(interpreter: str, folder: Path) -> None:
    """Create a virtual environment at ``folder``, or update the one that is there.

    Raises:
        SetupError: it cannot be made.
    """
    made = subprocess.run([interpreter, "-m", "venv", str(folder)], capture_output=True, text=True)
    if made.returncode:
        raise SetupError(f"no virtual environment can be made at {folder}: {_gist(made)}")


def _why_not(candidate: str, supported: Sequence[tuple[int, int]]) -> str | None:
    """Why the candidate cannot be built on; None if it can."""
    path = shutil.which(candidate)
    if path is None:
        return "is not there, or cannot be executed" if "/" in candidate else "is not found"
    # Show which of several it is: a stub may come before the real one on the path.
    where = "" if path == candidate else f"({path}) "
    try:
        result = subprocess.run([path, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{where}cannot be run: {error}"
    words = result.stdout.split()
    if result.returncode or len(words) != 3:
        return f"{where}cannot be run: {_gist(result)}"
    name, version, has_venv = words
    if name != "cpython":
        return f"is {name}, not CPython"
    major, minor, _ = map(int, version.split("."))
    if (major, minor) not in supported:
        return f"is Python {version}"
    return None if has_venv == "True" else f"has no module venv (on Debian: install python{major}.{minor}-venv)"


def _gist(result: subprocess.CompletedProcess[str]) -> str:
    """The most informative line: the last one of a traceback, else the first."""
    lines = (result.stderr.strip() or result.stdout.strip()).splitlines()
    if not lines:
        return f"exit status {result.returncode}, and no message"
    return lines[-1 if lines[0].startswith("Traceback") else 0].strip()


def _listed(pythons: Sequence[tuple[int, int]]) -> str:
    versions = [f"{major}.{minor}" for major, minor in pythons]
    return f"{', '.join(versions[:-1])} or {versions[-1]}"


if __name__ == "__main__":
    sys.exit(main())
