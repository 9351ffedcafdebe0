# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.paths RUNNER``: what the plug-in's tests need beside its environment to take a GPU's paths.

Each of upstream's model runners gets a folder, whose entry points have upstream call `mytests.harness.v1.paths.take` in
all of its processes. That of the second runner has Triton, too, and the interpreter as a backend of it. In the
environment itself Triton would change how all other tests run.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from build_tools.cache import published_folder
from build_tools.errors import SetupError, writing_to
from build_tools.pip_install import pip_install
from build_tools.plugin import ROOT

FOLDER = ROOT / "build" / "paths"
TRITON = ROOT / "requirements" / "paths-plugin.txt"
ENTRY_POINTS = """\
[triton.backends]
cpu = mytests.harness.v1.interpreter

[vllm.general_plugins]
test_paths = mytests.harness.v1.paths:take
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status; an error is one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m build_tools.paths", description=__doc__)
    parser.add_argument("runner", choices=["first", "second"])
    given = parser.parse_args(arguments)
    try:
        provide(FOLDER / given.runner, [TRITON] if given.runner == "second" else [])
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def provide(folder: Path, requirements: Sequence[Path]) -> None:
    """Make ``folder``, if it is not there: what the ``requirements`` name, and the entry points.

    Raises:
        SetupError: pip failed, or there is no room.
    """
    if folder.exists():
        return
    with writing_to(folder), published_folder(folder) as staging:
        for each in requirements:
            pip_install(["--no-deps", "--target", str(staging), "-r", str(each)])
        distribution = staging / "test_paths-0.dist-info"
        distribution.mkdir()
        (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: test-paths\nVersion: 0\n")
        (distribution / "entry_points.txt").write_text(ENTRY_POINTS)


if __name__ == "__main__":
    sys.exit(main())
