# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.releases [VERSION…]``: fetch releases of vLLM to run the plug-in's tests on, and list them.

The environment of the plug-in, which runs this, has the kernels of one release, and the torch that they need. Of the
others only the Python code is fetched. Each gets a folder in `FOLDER`, with links to those kernels, from which it is
imported if the folder comes first on Python's path.
"""

import argparse
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from build_tools.archive import unpack
from build_tools.cache import CACHE_VARIABLE, BuildCache, published_folder, user_cache
from build_tools.errors import SetupError, writing_to
from build_tools.fetch import fetch
from build_tools.plugin import ROOT, name_as_vllm
from build_tools.release import PROJECT, Artifact

FOLDER = ROOT / "build" / "releases"
SHA256 = {
    "0.28.0": "ac96dd0ec5be9c13f2aa4bfb50498c4727110406f6e4980b58a4097e4d18634a",
    "0.29.0": "c03feb07943ecae9e69e7dc424d7c5569ecf8d1292513aef2a4de67af381cd97",
    "0.30.0": "5f8f4e890c042ffa1c3e103f81c35e2d96f60a0a175ac43a4adbae7006bef62b",
    "0.31.0": "dde46f1efbe846e5bd0c5c4ec6ec71842c42254c7ff3d9bebb2a57028715d380",
    "0.33.0": "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
}
"""Of the source archive of each release that can be fetched."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status; an error is one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m build_tools.releases", description=__doc__)
    parser.add_argument("--list", action="store_true", help="fetch none of them")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"by default {', '.join(SHA256)}")
    given = parser.parse_args(arguments)
    installed = Path(sysconfig.get_path("purelib")) / PROJECT
    try:
        for version in given.versions or SHA256:
            if not given.list:
                provide(source_of(version), version, installed, FOLDER / version, user_cache())
            print(version)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def source_of(version: str) -> Artifact:
    """The source archive of a release.

    Raises:
        SetupError: its hash is not known.
    """
    if version not in SHA256:
        raise SetupError(f"vLLM {version} is not pinned; use one of {', '.join(SHA256)}, or add its hash to SHA256")
    return Artifact(f"{PROJECT}-{version}.tar.gz", SHA256[version])


def provide(source: Artifact, version: str, installed: Path, folder: Path, cache: BuildCache) -> None:
    """Make ``folder``, if it is not there: the Python code of a release, and links to the ``installed`` one's kernels.

    Raises:
        SetupError: the archive cannot be had, no kernels are installed, or there is no room.
    """
    if folder.exists():
        return
    kernels = sorted(installed.glob("*.so"))
    if not kernels:
        raise SetupError(f"{installed} has no compiled kernels; run `make plugin` first")
    with writing_to(cache.root, CACHE_VARIABLE):
        archive = fetch(source, cache)
    with writing_to(folder), published_folder(folder) as staging:
        unpack(archive, staging, frozenset({PROJECT}))
        for kernel in kernels:
            (staging / PROJECT / kernel.name).symlink_to(kernel)
        name_as_vllm(staging, version)


if __name__ == "__main__":
    sys.exit(main())
