# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.check_core ENVIRONMENT``: `sequence_hooks` alone, in an environment with nothing else.

Its wheel is built and installed there, it is imported, and its tests run, in which it records a run and draws it.
"""

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from build_tools.errors import SetupError

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sequence_hooks"
MAX_SECONDS = 0.5
"""The processor time, in seconds, for ``import sequence_hooks`` and all of its modules, interpreter included."""

IMPORT_ALL = """
import importlib, pkgutil, sys, sequence_hooks
for module in pkgutil.walk_packages(sequence_hooks.__path__, "sequence_hooks.", onerror=lambda name: None):
    # The plug-in is for environments with vLLM, training for those with torch, a terminal's pictures are an extra.
    others = "sequence_hooks.v1", "sequence_hooks.training", "sequence_hooks.serving.live.terminal"
    if not module.name.startswith(others):
        importlib.import_module(module.name)
engines = {"vllm", "torch", "transformers"} & set(sys.modules)
assert not engines, f"importing sequence_hooks imports {engines}"
"""
"""A program that imports every module for which no engine is needed."""

_REPEATS = 7
_IGNORED = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")

_TESTS = ("core", "fuzz", "harness")
"""Of `mytests`, the tests and what they import."""

_WALKS = "mytests/core/test_driver_walks.py"
"""They take longer than all other tests, and run with the fork's; no environment matters to them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status; what is wrong is on standard error."""
    (name,) = sys.argv[1:] if arguments is None else arguments
    folder = Path(name).absolute()
    try:
        start = time.monotonic()
        python = make_environment(folder, "setuptools", "wheel", "pytest", "hypothesis")
        made = time.monotonic()
        # Built from a copy: setuptools leaves folders in what it builds.
        shutil.copytree(PACKAGE, folder / "source", ignore=_IGNORED)
        install(python, f"{folder / 'source'}[watch]")
        now = time.monotonic()
        print(f"environment: {made - start:.1f} s; vllm-sequence-hooks built and installed: {now - made:.1f} s")
        check_imports(python, folder)
        # A copy, so that the package is found where it is installed, and not in the checkout.
        for name in _TESTS:
            shutil.copytree(ROOT / "mytests" / name, folder / "mytests" / name, ignore=_IGNORED)
        run([python, "-m", "pytest", "-q", "-m", "not full", f"--ignore={_WALKS}", "mytests/core"], folder)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def make_environment(folder: Path, *packages: str, python: str | Path = sys.executable) -> Path:
    """The interpreter of a new environment in ``folder`` with ``packages`` in it, made by ``python``.

    Raises:
        SetupError: it cannot be made, or a package cannot be had.
    """
    run([python, "-m", "venv", "--clear", folder], ROOT)
    made = folder / "bin" / "python"
    if packages:
        install(made, *packages)
    return made


def install(python: Path, *what: str | Path) -> None:
    """Have ``python`` install packages, wheels, sdists or folders, at the versions that set-up uses.

    Raises:
        SetupError: pip failed.
    """
    constraints = ROOT / "requirements" / "constraints-cpu.txt"
    run([python, "-m", "build_tools.pip_install", "--constraint", constraints, "--no-build-isolation", *what], ROOT)


def check_imports(python: Path, folder: Path) -> None:
    """Import all modules of the package, in seconds of the processor: other work on the machine doesn't count.

    Raises:
        SetupError: that takes too long, or loads an engine.
    """
    seconds = []
    for _ in range(_REPEATS):
        before = _seconds_of_children()
        run([python, "-c", IMPORT_ALL], folder)
        seconds.append(_seconds_of_children() - before)
    print(
        f"import of all modules, interpreter included: {median(seconds):.2f} s of the processor, median of {_REPEATS}"
    )
    if min(seconds) > MAX_SECONDS:
        raise SetupError(f"importing sequence_hooks takes {min(seconds):.2f} s at best, and may take {MAX_SECONDS} s")


def run(command: Sequence[str | Path], folder: Path) -> None:
    """Run ``command`` in ``folder``.

    Raises:
        SetupError: it failed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if subprocess.run(command, cwd=folder, env=environment, check=False).returncode:
        shown = [part for part in map(str, command[1:4]) if "\n" not in part]
        raise SetupError(f"{' '.join(shown)} has failed; its own message is above")


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
