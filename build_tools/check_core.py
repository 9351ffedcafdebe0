# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.check_core FOLDER``: `sequence_hooks` alone, in an environment with nothing else.

Its wheel is built and installed there, it is imported, and its tests run, in which it records a run and draws it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from build_tools.errors import SetupError

ROOT = Path(__file__).parent.parent
UV = (sys.executable, "-m", "uv")
IMPORT_ALL = """
import importlib, pkgutil, sys, sequence_hooks
for module in pkgutil.walk_packages(sequence_hooks.__path__, "sequence_hooks.", onerror=lambda name: None):
    # The plug-in is for environments with vLLM, training for those with torch, a terminal's pictures are an extra.
    others = "sequence_hooks.v1", "sequence_hooks.training", "sequence_hooks.serving.live.terminal"
    if not module.name.startswith(others):
        importlib.import_module(module.name)
engines = {"vllm", "torch", "transformers"} & set(sys.modules)
assert not engines, f"importing sequence_hooks imports {engines}"
count = sum(not name.startswith("sequence_hooks") for name in sys.modules)
assert count <= 360, f"importing sequence_hooks imports {count} modules, Python's own included, and may import 360"
"""
"""A program that imports every module for which no engine is needed."""

_TESTS = ("core", "fuzz", "harness")
"""Of `mytests`, the tests and what they import."""

_WALKS = "mytests/core/test_driver_walks.py"
"""They take longer than all other tests, and run with the fork's; no environment matters to them."""


def main() -> int:
    """Exit status; what is wrong is on standard error."""
    folder = Path(sys.argv[1]).absolute()
    try:
        python = make_environment(folder)
        # A build leaves a copy of the package where it runs.
        shutil.copytree(ROOT / "sequence_hooks", folder / "source")
        run([*UV, "build", "--quiet", "--wheel", "--out-dir", folder / "dist", folder / "source"], ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        install(python, f"{wheel}[watch]", "pytest", "hypothesis")
        run([python, "-c", IMPORT_ALL], folder)
        # A copy, so that the package is found where it is installed, and not in the checkout.
        for name in _TESTS:
            shutil.copytree(ROOT / "mytests" / name, folder / "mytests" / name)
        run([python, "-m", "pytest", "-q", "-m", "not full", f"--ignore={_WALKS}", "mytests/core"], folder)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def make_environment(folder: Path, python: str | Path = sys.executable) -> Path:
    """The interpreter of a new, empty environment in ``folder`` for the Python that ``python`` is.

    Raises:
        SetupError: it cannot be made.
    """
    run([*UV, "venv", "--quiet", "--clear", "--python", python, folder], ROOT)
    return folder / "bin" / "python"


def install(python: Path, *what: str | Path) -> None:
    """Have ``python``'s environment get packages, wheels or sdists, at the versions that set-up uses.

    Raises:
        SetupError: one cannot be had.
    """
    run([*UV, "pip", "install", "--quiet", "--python", python, "-c", "requirements/lock-fork.txt", *what], ROOT)


def run(command: Sequence[str | Path], folder: Path) -> None:
    """Run ``command`` in ``folder``.

    Raises:
        SetupError: it failed.
    """
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    if subprocess.run(command, cwd=folder, env=environment, check=False).returncode:
        shown = [part for part in map(str, command[1:4]) if "\n" not in part]
        raise SetupError(f"{' '.join(shown)} has failed; its own message is above")


if __name__ == "__main__":
    sys.exit(main())
