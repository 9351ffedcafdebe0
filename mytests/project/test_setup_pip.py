# SPDX-License-Identifier: Apache-2.0
"""What set-up shows of pip: its progress, and its errors."""

import io
import shutil
import sys
from pathlib import Path

import pytest

from build_tools import pip_install
from mytests.harness.programs import program

pytestmark = pytest.mark.model

PIP_SAYS = """\
Looking in indexes: https://an.index/simple
Requirement already satisfied: pip in ./lib
Collecting torch==2.13.0
  Downloading torch-2.13.0-cp311-cp311-linux_x86_64.whl (190.4 MB)
Processing /wheels/sympy-1.14.0-py3-none-any.whl (from torch==2.13.0)
  Downloading mpmath-1.3.0-py3-none-any.whl (536 kB)
Installing collected packages: mpmath, sympy, torch
Successfully installed mpmath-1.3.0 sympy-1.14.0 torch-2.13.0
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestPip:
    def run(self, folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> int:
        """Runs a pip that does what the script says."""
        monkeypatch.setattr(sys, "executable", program(folder / "python", script))
        return pip_install.main(["torch"])

    def test_a_file_has_a_few_lines(self) -> None:
        """They say what takes long, and how much there is."""
        screen = io.StringIO()
        pip_install.show_progress(PIP_SAYS.splitlines(), screen)
        large = "downloading torch-2.13.0-cp311-cp311-linux_x86_64.whl (190.4 MB)"
        assert screen.getvalue() == f"  {large}\n  installing 3 packages\n"

    def test_a_terminal_has_one_line(self) -> None:
        """It is overwritten by the next, no wider than the terminal, and gone at the end."""
        screen = Terminal()
        pip_install.show_progress([*PIP_SAYS.splitlines(), "Collecting " + "x" * 1000], screen)
        assert "\n" not in screen.getvalue()
        shown = screen.getvalue().split("\r\033[K")
        assert "  2 packages: mpmath-1.3.0-py3-none-any.whl (536 kB)" in shown
        assert max(map(len, shown)) < shutil.get_terminal_size().columns
        assert shown[-1] == ""

    def test_folders_that_lack_a_package_are_not_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Other warnings are passed on."""
        noise = "WARNING: Location 'file:///simple/torch/' is ignored: it is neither a file nor a directory."
        assert self.run(tmp_path, f'echo "{noise}" >&2; echo "WARNING: torch is yanked" >&2', monkeypatch) == 0
        assert capfd.readouterr() == ("", "WARNING: torch is yanked\n")

    def test_errors_are_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """pip's own error comes first, then a line of ours."""
        assert self.run(tmp_path, 'echo "ERROR: No matching distribution" >&2; exit 1', monkeypatch) == 1
        own = "error: pip could not install what is needed; its own message is above\n"
        assert capfd.readouterr().err == f"ERROR: No matching distribution\n{own}"

    def test_a_full_disk_is_told_with_the_way_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """The error names the folders that pip writes to."""
        problem = "Could not install packages due to an OSError: [Errno 28] No space left on device"
        assert self.run(tmp_path, f'echo "ERROR: {problem}" >&2; exit 1', monkeypatch) == 1
        last = capfd.readouterr().err.splitlines()[-1]
        assert last.startswith(f"error: pip cannot write (ERROR: {problem}); make room in {sys.prefix} or in ")
