# SPDX-License-Identifier: Apache-2.0
"""Compiles upstream's CPU kernels."""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from build_tools import extension
from build_tools.cache import CACHE_VARIABLE
from build_tools.errors import SetupError, temporary_folder, writing_to

NINJA_STEP = re.compile(r"^\[(\d+)/(\d+)\]")


def require_compiler(flags: Sequence[str]) -> None:
    """Try ``flags`` and Python's headers on an empty program.

    Raises:
        SetupError: there is no compiler, or it fails with the flags or the headers.
    """
    # torch chooses its compiler in the same way.
    compiler = os.environ.get("CXX", "c++")
    with writing_to(temporary_folder(), "TMPDIR"), tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text("int main() { return 0; }\n")
        result = _syntax_check(compiler, [*flags, str(source)])
        if result.returncode:
            raise SetupError(f"{compiler} cannot compile for this machine: {_error_line(result)}")
        source.write_text("#include <Python.h>\n")
        include = f"-I{sysconfig.get_path('include')}"
        if _syntax_check(compiler, [include, str(source)]).returncode:
            python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
            raise SetupError(f"{python}'s header Python.h is missing: install {python}-dev")


def compile_kernels(source: Path, output: Path, flags: Sequence[str], log: Path) -> None:
    """Compile ``source``/csrc/cpu to ``output``/_C.abi3.so; the compiler's output goes to ``log``.

    Raises:
        SetupError: the compilation failed.
    """
    command = [sys.executable, extension.__file__, str(source), str(output), *flags]
    log.parent.mkdir(parents=True, exist_ok=True)
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with log.open("w") as file, subprocess.Popen(command, env=_environment(), **pipes) as process:
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            if step := NINJA_STEP.match(line):
                print(f"  {step[1]} of {step[2]} files", flush=True)
    if process.returncode:
        raise SetupError(_failure(log))


def _failure(log: Path) -> str:
    for line in log.read_text(errors="replace").splitlines():
        if "No space left on device" in line:
            way_out = f"make room in {tempfile.gettempdir()} or {log.parent.parent}, or set TMPDIR or {CACHE_VARIABLE}"
            return f"no room for the CPU kernels: {line.strip()}; {way_out}"
    return f"upstream's CPU kernels do not compile; the compiler's output: {log}"


def _syntax_check(compiler: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [*compiler.split(), "-fsyntax-only", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        why = "is not found" if isinstance(error, FileNotFoundError) else f"cannot be run: {error.strerror}"
        raise SetupError(f"no C++ compiler ({compiler} {why}): install g++, or name one in CXX") from None


def _error_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = result.stderr.strip().splitlines()
    return next((line for line in lines if "error" in line), "no message")


def _environment() -> dict[str, str]:
    """Our environment, with ninja on the path, where torch looks for it to compile in parallel."""
    import ninja

    return {**os.environ, "PATH": os.pathsep.join([ninja.BIN_DIR, os.environ.get("PATH", "")])}
