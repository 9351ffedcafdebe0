# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.install_torch``: install the torch that the kernels are made for.

pip takes a CPU build by itself if one of its sources offers it, since a local version ("+cpu") sorts
above the plain one. If none does, the plain build for Linux pulls in gigabytes of CUDA libraries, so uv,
which knows where the CPU builds are, is tried first; if that fails, pip installs torch.
"""

import argparse
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import httpx2

from build_tools import pip_install
from build_tools.release import CPU_TORCH_VERSION, CUDA_TORCH_VERSION, Target
from build_tools.sources import package_finder, pip_options
from build_tools.target import choose_target


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(prog="python -m build_tools.install_torch")
    parser.add_argument("--index", default="", help="an extra index that has CPU builds of torch")
    index = parser.parse_args().index
    target = choose_target()
    wanted = CPU_TORCH_VERSION if target is Target.CPU else CUDA_TORCH_VERSION
    if _is_installed(wanted):
        return 0
    requirement = f"torch=={wanted}"
    ask_uv = target is Target.CPU and not index and _plain_build_is_large()
    if ask_uv and not _pip_offers_cpu_build(requirement) and _installed_by_uv(requirement):
        return 0
    extra = ["--extra-index-url", index] if index else []
    return pip_install.main([*extra, requirement])


def _is_installed(wanted: str) -> bool:
    try:
        return version("torch").partition("+")[0] == wanted
    except PackageNotFoundError:
        return False


def _plain_build_is_large() -> bool:
    return (platform.system(), platform.machine()) == ("Linux", "x86_64")


def _pip_offers_cpu_build(requirement: str) -> bool:
    finder = package_finder(pip_options())
    finder.ignore_compatibility = False
    sources = finder.sources
    for source in sources:
        finder.sources = [source]
        try:
            best = finder.find_best_match(requirement).best
        except (httpx2.HTTPError, OSError):
            continue
        if best is not None and (best.version or "").endswith("+cpu"):
            return True
    return False


def _installed_by_uv(requirement: str) -> bool:
    command = ["-m", "uv", "pip", "install", "--python", sys.executable, "--torch-backend", "cpu"]
    return subprocess.run([sys.executable, *command, requirement]).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
