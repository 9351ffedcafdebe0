# SPDX-License-Identifier: Apache-2.0
"""Which interpreter set-up takes, and what it says about the others."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from build_tools import start
from build_tools.errors import SetupError
from mytests.harness.programs import program

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
SUPPORTED = "3.10, 3.11 or 3.12"


def python(folder: Path, version: str, name: str = "cpython", has_venv: bool = True) -> str:
    """A fake interpreter that reports what it is given."""
    return program(folder / f"python{version}", f'echo "{name} {version} {has_venv}"')


class TestInterpreter:
    def test_the_first_that_fits_is_taken(self, tmp_path: Path) -> None:
        """Those before it are skipped."""
        names = [python(tmp_path, version) for version in ("3.9.1", "3.12.4", "3.11.1")]
        assert start.choose_interpreter("", ["no-such-python", *names]) == names[1]

    def test_what_was_asked_for_is_the_only_candidate(self, tmp_path: Path) -> None:
        """Another one is not taken behind the user's back."""
        asked, other = python(tmp_path, "3.13.0"), python(tmp_path, "3.11.1")
        line = f"PYTHON={asked} is Python 3.13.0; name an interpreter of Python {SUPPORTED}, or leave PYTHON out"
        with pytest.raises(SetupError, match=f"^{re.escape(line)}$"):
            start.choose_interpreter(asked, [other])

    def test_a_current_vllm_takes_others(self, tmp_path: Path) -> None:
        """The fork has no build for 3.13, and the plug-in's vLLM none for 3.10."""
        older, newer = python(tmp_path, "3.10.5"), python(tmp_path, "3.13.0")
        assert start.choose_interpreter("", [older, newer], start.PYTHONS["plugin"]) == newer
        assert start.choose_interpreter("", [newer, older], start.PYTHONS["fork"]) == older

    def test_a_stub_is_named_with_what_it_says(self, tmp_path: Path) -> None:
        """The stubs of pyenv and Windows are on the path, and run nothing."""
        stub = program(
            tmp_path / "python3.11", "echo 'pyenv: python3.11: command not found' >&2; echo more >&2; exit 127"
        )
        with pytest.raises(
            SetupError, match=rf"^PYTHON={stub} cannot be run: pyenv: python3.11: command not found; name"
        ):
            start.choose_interpreter(stub, [])

    def test_without_any_each_is_told_with_its_reason(self, tmp_path: Path) -> None:
        """All reasons are in one line."""
        (tmp_path / "text").write_text("")
        (tmp_path / "garbage").write_bytes(b"\x7fELF")
        (tmp_path / "garbage").chmod(0o755)
        candidates = {
            "no-such-python": "is not found",
            str(tmp_path / "text"): "is not there, or cannot be executed",
            str(tmp_path / "garbage"): "cannot be run: [Errno 8] Exec format error",
            program(tmp_path / "silent", "exit 3"): "cannot be run: exit status 3, and no message",
            program(tmp_path / "broken", "printf 'Traceback (x)\\nboom\\n' >&2; exit 1"): "cannot be run: boom",
            python(tmp_path, "3.8.2"): "is Python 3.8.2",
            python(tmp_path, "3.11.5", name="pypy"): "is pypy, not CPython",
            python(tmp_path, "3.10.5", has_venv=False): "has no module venv (on Debian: install python3.10-venv)",
        }
        with pytest.raises(SetupError, match=rf"^no Python {SUPPORTED}: [^\n]*; install one, or name it") as error:
            start.choose_interpreter("", list(candidates))
        for name, reason in candidates.items():
            assert f"{name} {reason}" in str(error.value)

    def test_this_interpreter_fits(self, tmp_path: Path) -> None:
        """It makes an environment."""
        assert start.main([str(tmp_path / "venv"), "no-such-python", sys.executable]) == 0
        assert (tmp_path / "venv" / "bin" / "python").exists()

    def test_an_environment_that_cannot_be_made_is_one_line(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """venv's traceback is not shown."""
        (tmp_path / "file").touch()
        assert start.main([str(tmp_path / "file" / "venv"), sys.executable]) == 1
        out, err = capfd.readouterr()
        assert out == ""
        assert re.fullmatch(r"error: no virtual environment can be made at \S+/file/venv: [^\n]+\n", err)


class TestMake:
    def make(self, tmp_path: Path, *arguments: str, path: str = os.defpath) -> "subprocess.CompletedProcess[str]":
        """Runs `make setup` of this checkout, with an environment that does not exist."""
        command = [shutil.which("make") or "make", "setup", f"VENV={tmp_path / 'venv'}", *arguments]
        return subprocess.run(command, cwd=ROOT, env={"PATH": path}, capture_output=True, text=True)

    def test_a_python_that_does_not_fit_ends_it(self, tmp_path: Path) -> None:
        """Another Python checks it, and nothing is made."""
        asked, path = python(tmp_path, "3.13.0"), f"{Path(sys.executable).parent}:{os.defpath}"
        result = self.make(tmp_path, f"PYTHON={asked}", path=path)
        assert result.stderr.splitlines()[0].startswith(f"error: PYTHON={asked} is Python 3.13.0; name")
        assert not (tmp_path / "venv").exists()

    def test_where_no_python_runs_that_is_said(self, tmp_path: Path) -> None:
        """The error only lists the names, since nothing can check further."""
        stub = program(tmp_path / "python3.11", "exit 127")
        result = self.make(tmp_path, f"PYTHON={stub}", path=str(tmp_path))
        assert result.stderr.splitlines()[0].startswith("error: none of these runs: python3.11 ")

    def test_all_is_checked_before_anything_large_is_fetched(self, tmp_path: Path) -> None:
        """Only the tools for the check come first."""
        printed = self.make(tmp_path, "--dry-run", path=os.defpath).stdout
        steps = ["build_tools.start", "requirements/build.txt", "build_tools.preflight", "install_torch", "common.txt"]
        places = [printed.index(step) for step in steps]
        assert places == sorted(places)
