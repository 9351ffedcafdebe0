# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.mutants``: a folder in which mutmut changes the plug-in, and tests it on a stock vLLM.

mutmut reads ``[tool.mutmut]`` of the folder that it runs in, which in the repository is the fork's. So the plug-in gets
a copy of what its tests need, in which ``[tool.mutmut-plugin]`` has that name.
"""

import shutil
import sys
from pathlib import Path

from build_tools.plugin import ROOT, SHARED

WORKSPACE = ROOT / "build" / "mutants-plugin"
ALSO = ("deploy", "LICENSE", "Makefile", "README.md", "TODO.md")
_RENAMED = (("[tool.mutmut]", "[tool.mutmut-fork]"), ("[tool.mutmut-plugin]", "[tool.mutmut]"))


def main() -> int:
    """Exit status."""
    make_workspace(WORKSPACE)
    return 0


def make_workspace(folder: Path) -> None:
    """Copy to ``folder`` what the plug-in's tests import and read; what mutmut has found out there stays."""
    for name in (*SHARED, *ALSO):
        source, copy = ROOT / name, folder / name
        if source.is_dir():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    # An interpreter takes no notice of a folder in its path that is not there when it starts.
    (folder / "mutants" / "examples").mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(configuration((ROOT / "pyproject.toml").read_text()))


def configuration(pyproject: str) -> str:
    """The text of ``pyproject`` with the plug-in's settings where mutmut looks for them."""
    for old, new in _RENAMED:
        pyproject = pyproject.replace(f"{old}\n", f"{new}\n")
    return pyproject


if __name__ == "__main__":
    sys.exit(main())
